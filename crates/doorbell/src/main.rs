//! The `doorbell` command.

fn main() -> std::process::ExitCode {
    doorbell::main()
}
