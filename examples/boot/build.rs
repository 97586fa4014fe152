//! Links a bare-metal image: with its own linker script, without start-up code and libraries.
fn main() {
    let script =
        format!("{}/image.ld", std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=src/start.s");
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-z,max-page-size=4096");
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{script}");
}
