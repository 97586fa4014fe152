//! The `doorbell` command with one interface more, `fastpath-rtl`: an interface of another program, added by
//! its row.

mod interface;

use interface::FastpathRtl;
use world::interfaces::{self, Interface};

fn main() -> std::process::ExitCode {
    interfaces::add(FastpathRtl::ROW);
    doorbell::main()
}
