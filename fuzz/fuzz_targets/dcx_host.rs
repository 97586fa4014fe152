//! A hostile host of DC Express whose decisions are the fuzzer's bytes: the interpreter of the front end's
//! own tests.

use runtime::Span;

use crate::raw::dcx::script::{Script, drawn};
use crate::raw::dcx::world::World;
use crate::raw::nvme::choice::{Bytes, Choice};

pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let setup = drawn(&mut bytes);
    setup.run(async |w: World| {
        w.medium.span.set(Span::ns(bytes.below(3) * 700));
        let mut script = Script::new(&w.raw, bytes, &w.setup);
        script.recover(true).await;
        while !script.is_over() {
            script.step().await;
        }
        script.recover(true).await;
    });
}
