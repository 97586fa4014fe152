//! The SONAME of the shared library: a program that is linked with it asks for the version whose interface it
//! knows. Before 1.0 a minor version may change that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    if of("CARGO_CFG_TARGET_OS") == "linux" {
        let (major, minor) = (of("CARGO_PKG_VERSION_MAJOR"), of("CARGO_PKG_VERSION_MINOR"));
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfnvme.so.{major}.{minor}");
    }
}
