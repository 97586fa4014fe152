//! Links the C library for its start-up code, `memcpy` and `abort`: without std, rustc does not.
fn main() {
    println!("cargo:rustc-link-lib=c");
}
