//! The same driver on real memory, with the controller in another thread.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use bus::live::Shared;
use common::fake::{Answer, Fake, Traits};
use common::{BLOCK, pattern};
use host::BlockDevice;
use host::nvme::{Completion, Controller, Doorbell, Options, QueueOptions};
use runtime::{Log, Rt, STD_CLOCK, Span};
use wire::{BusAddr, Lba};

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a controller in a thread of its own for as long as `f` takes.
fn beside_a_controller(f: impl FnOnce(&Rt, &Shared)) {
    let shared = Shared::between_threads(16 << 20, BusAddr(0x1_0000_0000), 0x2000).unwrap();
    let (there, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // The other thread ends with this one, even if it panics.
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let io = |n: u64, _: &_| Answer::After(Span::us(n * 7 % 50));
            let traits = Traits { io: Box::new(io), ..Traits::default() };
            let _fake = Fake::start(shared.device(&rt), traits);
            there.store(true, Ordering::Release);
            rt.block_on(async {
                while !stop.load(Ordering::Relaxed) {
                    rt.sleep(Span::ms(1)).await;
                }
            });
            rt.drop_tasks();
        });
        while !there.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        f(&rt, &shared);
        rt.drop_tasks();
    });
}

#[test]
fn blocks_cross_threads_in_every_way() {
    beside_a_controller(|rt, shared| {
        rt.block_on(async {
            let host = shared.host(rt);
            let options = Options { queues: 4, ..Options::default() };
            let controller = Controller::start(host, options).await.unwrap();
            let completions = [Completion::Polled, Completion::Interrupt { vector: 3 }];
            for completion in completions {
                for doorbell in [Doorbell::Each, Doorbell::Batched] {
                    let depth = 8;
                    let options =
                        QueueOptions { depth, completion, doorbell, ..QueueOptions::default() };
                    let queue = controller.queue(options).await.unwrap();
                    let left = Rc::new(Cell::new(500));
                    let wrong = Rc::new(RefCell::new(Vec::new()));
                    for lba in 0..500_u64 {
                        let (queue, left, wrong) = (queue.clone(), left.clone(), wrong.clone());
                        rt.spawn(async move {
                            let buffer = queue.buffer(BLOCK).unwrap();
                            let (buffer, read) = queue.read(Lba(lba), buffer).await;
                            let mut seen = vec![0; BLOCK];
                            buffer.copy_out(0, &mut seen);
                            if read.is_err() || seen != pattern(lba) {
                                wrong.borrow_mut().push((lba, read));
                            }
                            left.set(left.get() - 1);
                        });
                    }
                    while left.get() > 0 {
                        rt.sleep(Span::us(100)).await;
                    }
                    assert_eq!(*wrong.borrow(), []);
                    assert_eq!(queue.slots_free(), 8);
                    assert_eq!(queue.counters().protocol_errors, 0);
                }
            }
            controller.reset().await.unwrap();
            controller.shutdown().await.unwrap();
        });
    });
}
