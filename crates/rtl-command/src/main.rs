//! The `doorbell` command with one interface more, `fastpath-rtl`: an interface of another program, added by
//! its row.

mod interface;

use world::interfaces;

fn main() -> std::process::ExitCode {
    interfaces::add(&interface::ROW);
    doorbell::main()
}
