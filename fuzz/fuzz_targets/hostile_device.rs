//! The NVMe driver against a device whose forged completions are the fuzzer's bytes: every read completes,
//! with the right data.

use std::rc::Rc;

use bus::DevicePort;
use bus::sim::SimHost;
use host::BlockDevice;
use host::nvme::{Completion, Options, Queue, QueueOptions};
use runtime::Span;
use wire::Lba;
use wire::nvme::entry::Cqe;
use zerocopy::FromBytes;

use crate::common::fake::{Answer, Traits};
use crate::common::{BLOCK, Crowd, World, pattern};
use crate::raw::nvme::choice::{Bytes, Choice};

async fn read(queue: Rc<Queue<SimHost>>, lba: u64) {
    let buffer = queue.buffer(BLOCK).expect("memory for a block");
    let (buffer, result) = queue.read(Lba(lba), buffer).await;
    result.unwrap_or_else(|error| panic!("LBA {lba}: {error}"));
    let mut seen = vec![0; BLOCK];
    buffer.copy_out(0, &mut seen);
    assert_eq!(seen, pattern(lba), "foreign data at LBA {lba}");
}

pub fn run(data: &[u8]) {
    let mut choice = Bytes(data);
    let slow = 1 + choice.below(200);
    let io = move |n: u64, _: &_| Answer::After(Span::us(1 + n * 37 % slow));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let completion = choice.of(&[
            Completion::Polled,
            Completion::Hybrid,
            Completion::Interrupt { vector: 1 },
        ]);
        let small = QueueOptions { depth: 32, completion, ..QueueOptions::default() };
        let many = Options { retries: 10_000, ..Options::default() };
        let (_controller, queue) = world.queue(many, small).await;
        let crowd = Crowd::new(&world.rt);
        (0..48).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        while !choice.is_over() {
            let near = !choice.one_in(8);
            let halves = [choice.word(), choice.word()].map(u64::to_le_bytes);
            let mut cqe = Cqe::read_from_bytes(&halves.concat()).expect("its length");
            if near {
                // This queue, a head within it, a slot in use.
                cqe.sq_id = 1.into();
                cqe.sq_head = (choice.below(32) as u16).into();
                cqe.cid = ((choice.below(64) << 10 | choice.below(33)) as u16).into();
            }
            let fake = &world.fake;
            // A plausible entry would be a valid completion.
            if fake.has_queue(1) && fake.has_room(1) && !fake.is_plausible(1, &cqe) {
                fake.publish(1, cqe);
                fake.device().interrupt(1);
            }
            world.rt.sleep(Span::ns(100 + choice.below(2_000))).await;
        }
        crowd.all(Span::s(1000)).await;
        assert_eq!(queue.slots_free(), 32, "slots that did not come back");
    });
}
