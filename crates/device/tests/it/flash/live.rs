//! The same chips on the wall clock, at full speed and at the pace of their model. Durations are not checked.

use std::rc::Rc;

use flash::chips::{Chips, Options};
use ftl::{PageRead, Pages, Source, Tag, Unit};
use media::contents::Keep;
use media::nand::{Nand, Spec, Suspend, Timing};
use runtime::{Log, Rt, STD_CLOCK, Span};

use super::{erase, header, page, part, row, spec};

#[test]
fn live_flash_reads_back_data_timed_and_untimed() {
    let us = Span::us;
    let suspend = Suspend { program: us(1), erase: us(1), resume: us(1), most: 2 };
    let quick = Timing {
        read: [us(5); 4],
        program: [us(20); 4],
        erase: us(50),
        suspend: Some(suspend),
        ..super::timing()
    };
    for timing in [None, Some(quick)] {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let nand = Nand::new(Spec { keep: Keep::Everything, ..spec() }).unwrap();
        let options = Options { timing, protected_buffer: false, nv_slots: None, held_up: false };
        let chips = Rc::new(Chips::new(&rt, nand, options).unwrap());
        chips.slots(4);
        let done = Rc::new(std::cell::Cell::new(0));
        for die in 0..2 {
            let (chips, done) = (chips.clone(), done.clone());
            rt.spawn(async move {
                for block in 0..8_u32 {
                    let tag = Tag { logical: block, order: 1 };
                    chips.stage(die, tag, 0, &[block as u8 + 1; 4096]);
                    let units = [Unit { logical: block, from: Source::Slot(die) }; 12];
                    let row = row(die, block, 0b11, 0);
                    chips.program(row, header(block.into()), &units).await.unwrap();
                    let mut parts = [part(page(die, 1, block, 2), 0b10)];
                    chips.read(&mut parts).await;
                    assert_eq!(parts[0].seen, PageRead::Good { corrected: 0, retries: 0 });
                    let place = ftl::Place { page: page(die, 1, block, 2), unit: 1 };
                    let mut bytes = Vec::new();
                    assert!(chips.lend(place, &mut |_, run| bytes.extend_from_slice(run)));
                    assert_eq!(bytes, [block as u8 + 1; 4096]);
                    chips.erase(&mut [erase(die, block, 0b11)]).await;
                    assert!(chips.header(page(die, 1, block, 2)).is_none());
                }
                done.set(done.get() + 1);
            });
        }
        rt.block_on(async {
            while done.get() < 2 {
                rt.yield_now().await;
            }
        });
    }
}
