//! The `doorbell` command.

fn main() -> std::process::ExitCode {
    machine::cli::main()
}
