//! With the feature `verilated`: Verilator translates `rtl/` to C++, which is compiled together with a
//! short shim.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "verilated")]
    verilated::build();
}

#[cfg(feature = "verilated")]
mod verilated {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs};

    const TOP: &str = "fastpath_top";

    pub fn build() {
        let here =
            PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where it is"));
        let rtl = here.join("../../rtl");
        let out =
            PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to")).join("verilated");
        println!("cargo::rerun-if-changed={}", rtl.display());
        println!("cargo::rerun-if-changed=src/shim.cpp");
        let mut sources = with_ending(&rtl, "sv");
        sources.sort();
        let mut verilate = Command::new("verilator");
        verilate.args([
            "--cc",
            "-O3",
            "--x-assign",
            "fast",
            "--x-initial",
            "fast",
            "--top-module",
            TOP,
        ]);
        verilate.arg(format!("-I{}", rtl.display())).arg("--Mdir").arg(&out).args(&sources);
        run(&mut verilate);
        let include = PathBuf::from(
            run(Command::new("verilator").args(["--getenv", "VERILATOR_ROOT"])).trim(),
        )
        .join("include");
        let mut compile = cc::Build::new();
        compile.cpp(true).std("c++17").warnings(false).opt_level(2).include(&out).include(&include);
        compile.include(include.join("vltstd")).files(with_ending(&out, "cpp"));
        compile.file(include.join("verilated.cpp")).file(here.join("src/shim.cpp"));
        let threads = include.join("verilated_threads.cpp");
        if threads.exists() {
            compile.file(threads);
        }
        compile.compile("fastpath_verilated");
    }

    fn with_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
        let entries =
            fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|found| found == ending)).collect()
    }

    fn run(command: &mut Command) -> String {
        let done = command.output().unwrap_or_else(|error| {
            panic!("{command:?}: {error}: the feature `verilated` needs Verilator 5 (Debian: verilator)")
        });
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    }
}
