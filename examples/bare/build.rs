//! Without std, nobody else asks for the C library: for its start-up code, `memcpy` and `abort`.
fn main() {
    println!("cargo:rustc-link-lib=c");
}
