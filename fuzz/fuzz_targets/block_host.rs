//! A hostile host of descriptor blocks whose decisions are the fuzzer's bytes: after any sequence the
//! front end serves it again once it is re-enabled.

use bus::HostPort;
use device::block::Options;
use runtime::Span;
use wire::block::descriptor::Descriptor;
use wire::block::registers::{BLOCK, BLOCK_BYTES, CONTROL, RING, STATUS};
use zerocopy::FromBytes;

use crate::raw::block::{World, options};
use crate::raw::nvme::choice::{Bytes, Choice};

pub fn run(data: &[u8]) {
    let mut choice = Bytes(data);
    let (group, ahead) = (1 + choice.below(4) as u8, choice.below(5) as u8);
    let wanted = Options { group, ahead, second_engine: choice.one_in(2), ..options() };
    World::run(wanted, async |world| {
        world.enable(0).await;
        let (mut first, mut turn) = (0_u32, 1_u16);
        while !choice.is_over() {
            match choice.below(8) {
                0 => {
                    let words = u64::from((BLOCK_BYTES - RING) / 4);
                    let register = RING + 4 * choice.below(words) as u32;
                    if register != STATUS {
                        world.host.write32(register, choice.word() as u32);
                    }
                }
                1 => {
                    let bytes: Vec<u8> = (0..4).flat_map(|_| choice.word().to_le_bytes()).collect();
                    let junk = Descriptor::read_from_bytes(&bytes).expect("its length");
                    world.store(choice.below(8) as u32, &junk);
                }
                2 => world.host.write32(CONTROL, choice.below(4) as u32),
                3 => world.host.write32(BLOCK, choice.word() as u32 & 0x0003_0007),
                _ => {
                    let size = 1 + choice.below(4) as u32;
                    world.store_reads(first, size);
                    world.announce(first, size as u16, turn);
                    first = first.wrapping_add(size);
                    turn = turn.wrapping_add(1);
                }
            }
            world.rt.sleep(Span::ns(choice.below(8_000))).await;
        }
        world.disable().await;
        world.ring.zero();
        assert_eq!(world.enable(5).await.violation(), 0, "a proper enable");
        world.store_reads(5, 3);
        world.announce(5, 3, 1);
        world.back(7).await;
    });
}
