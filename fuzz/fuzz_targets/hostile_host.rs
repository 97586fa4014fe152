//! A hostile host whose decisions are the fuzzer's bytes: the interpreter of the controller's own tests.

use crate::raw::nvme::choice::Bytes;
use crate::raw::nvme::script::{Script, touches_with_pi};
use crate::raw::nvme::world::{Setup, World};

pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let setup = Setup::drawn(&mut bytes);
    setup.run(async |mut w: World| {
        let mut script = Script::new(&mut w.raw, bytes, w.setup.block_bytes);
        script.recover(|| false, true).await;
        w.medium.written.borrow_mut().clear();
        while !script.is_over() {
            script.step().await;
        }
        script.recover(|| touches_with_pi(&w.medium.written.borrow()), true).await;
    });
}
