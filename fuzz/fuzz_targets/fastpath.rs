//! FastPath's engine against requests of arbitrary bytes: each gets a response, and none accesses memory
//! or blocks of another handle.

use bus::{Buffer, HostPort};
use host::fastpath::{Engine, Options, Schedule};
use host::nvme::{self, Controller, QueueOptions};
use runtime::Span;
use wire::Lba;
use wire::fastpath::{Direction, Request, Transfer};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::fake::{Answer, Traits};
use crate::common::{World, pattern};
use crate::raw::nvme::choice::{Bytes, Choice};

const BYTES: usize = 32 << 10;

pub fn run(data: &[u8]) {
    let mut choice = Bytes(data);
    let io = |n: u64, _: &_| Answer::After(Span::us(1 + n * 37 % 90));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let wanted = nvme::Options { queues: 4, timeout: Span::ms(10), ..nvme::Options::default() };
        let controller = Controller::start(world.host.clone(), wanted).await.expect("a controller");
        let queue = QueueOptions { depth: 8, ..QueueOptions::default() };
        let schedule = choice.of(&[Schedule::RoundRobin, Schedule::WEIGHTED, Schedule::DEADLINE]);
        let options =
            Options { engines: 2, queue, requests: 16, from: Lba(64), traces: 5, schedule };
        let hosts = std::slice::from_ref(&world.host);
        let engine = Engine::start(hosts, &controller, options).await.expect("an engine");
        let open = |blocks| -> (_, _, Buffer) {
            let buffer = engine.port().arena().buffer(BYTES).expect("memory");
            let (handle, area) = engine.open(blocks, buffer.part(0, BYTES)).expect("a handle");
            (handle, area, buffer)
        };
        let (mine, others) = (open(64), open(64));
        let secret = [0x5a; BYTES];
        others.2.copy_in(0, &secret);
        while !choice.is_over() {
            let transfer = Transfer {
                direction: choice.of(&[Direction::Read, Direction::Write]),
                offset: choice.of(&[0, 512, 4096, 31 << 10, 32 << 10, 1 << 20, u64::MAX - 511]),
                size: choice.of(&[0, 512, 1024, 4096, 32 << 10, 1 << 20, u32::MAX]),
                block_size: choice.of(&[512, 1024, 2048, 4096, 8192, 0, 3]),
                buffer_offset: choice.of(&[0, 512, 4096, 31 << 10, 32 << 10, u64::MAX - 511]),
            };
            let request = Request::transfer(7, mine.0.fp_id, mine.0.generation, &transfer);
            let mut bytes: Vec<u8> = request.as_bytes().to_vec();
            for _ in 0..choice.below(3) {
                let at = choice.below(bytes.len() as u64) as usize;
                bytes[at] = choice.below(256) as u8;
            }
            let request = Request::read_from_bytes(&bytes).expect("its length");
            if (request.fp_id.get(), request.generation.get())
                == (others.0.fp_id, others.0.generation)
            {
                // That would be a valid request for the other handle.
                continue;
            }
            let response = engine.perform(&request).await;
            assert_eq!(response.tag, request.tag, "{request:?}");
        }
        let mut seen = vec![0; BYTES];
        others.2.copy_out(0, &mut seen);
        assert!(seen == secret, "memory of another handle was written");
        for block in (0..64).step_by(9) {
            let lba = others.1.first.0 + block;
            assert_eq!(world.fake.block(lba), pattern(lba), "LBA {lba} of another handle");
        }
        controller.shutdown().await.expect("an orderly end");
    });
}
