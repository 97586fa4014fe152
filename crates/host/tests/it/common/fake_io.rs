//! I/O commands of the scripted controller.

use std::rc::Rc;

use bus::{Carry, DevicePort, Posting, Segment};
use runtime::{Span, Time};
use wire::QueueId;
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::io;
use wire::nvme::prp::{PrpWalk, Step};
use wire::nvme::sgl::{Flow, SglWalk, Stretch};
use wire::nvme::status::Status;

use super::BLOCK;
use super::fake::{Answer, Fake};

impl<D: DevicePort> Fake<D> {
    pub(super) async fn io(self: Rc<Self>, qid: u16, sqe: &Sqe, epoch: u64) {
        if epoch != self.epoch.get() {
            return;
        }
        let request = io::parse(sqe).expect("the driver sends sense");
        let first = self.live.borrow_mut().insert((qid, request.cid.0));
        assert!(first, "command {} is in flight twice", request.cid);
        self.uses.borrow_mut().insert(request.cid.0 & 0x3ff, request.cid.0 >> 10);
        let number = self.commands.get();
        self.commands.set(number + 1);
        let answer = (self.traits.borrow_mut().io)(number, &request);
        let rt = self.device.rt();
        match answer {
            Answer::Never => {
                self.held.borrow_mut().insert((qid, request.cid.0));
                return;
            }
            Answer::After(span) | Answer::Fails(span, _) => rt.sleep(span).await,
            Answer::Twice | Answer::AmongForgeries => rt.sleep(Span::us(5)).await,
        }
        if epoch != self.epoch.get() {
            return;
        }
        self.transfers.set(self.transfers.get() + 1);
        if !matches!(answer, Answer::Fails(..)) {
            self.transfer(&request).await;
        }
        self.transfers.set(self.transfers.get() - 1);
        if epoch != self.epoch.get() {
            return;
        }
        let status = match answer {
            Answer::Fails(_, status) => status,
            _ => Status::SUCCESS,
        };
        let cqe = Cqe::new(request.cid, status);
        if answer == Answer::AmongForgeries {
            let cid = request.cid.0;
            let (queue, head) = (QueueId(qid), 0);
            self.publish(qid, cqe.with_queue(QueueId(qid + 1), head));
            self.publish(qid, cqe.with_queue(queue, u16::MAX));
            self.publish(qid, Cqe { cid: (cid | 0x3ff).into(), ..cqe }.with_queue(queue, head));
            self.publish(qid, Cqe { cid: (cid ^ 0x400).into(), ..cqe }.with_queue(queue, head));
        }
        self.complete(qid, cqe);
        if answer == Answer::Twice {
            self.complete(qid, cqe);
        }
    }

    async fn transfer(&self, request: &io::Request) {
        let (access, writes) = match request.command {
            io::Command::Flush => {
                self.flushes.set(self.flushes.get() + 1);
                return;
            }
            io::Command::Read(access) => (access, false),
            io::Command::Write(access) => (access, true),
            other => panic!("the driver has no such command: {other:?}"),
        };
        let segments = self.segments(request.data, u64::from(access.blocks) * BLOCK as u64).await;
        if writes {
            let mut data = vec![0; access.blocks as usize * BLOCK];
            self.device.read(&segments, &mut data, Carry::All).await.unwrap();
            for (lba, block) in (access.lba.0..).zip(data.chunks(BLOCK)) {
                self.blocks.borrow_mut().insert(lba, block.to_vec());
            }
        } else {
            let blocks = access.lba.0..access.lba.0 + u64::from(access.blocks);
            let data: Vec<u8> = blocks.flat_map(|lba| self.block(lba)).collect();
            let how = Posting::STRICT;
            self.device.write(&segments, &data[..], how, Time::ZERO).await.unwrap();
        }
    }

    async fn segments(&self, data: DataPointer, bytes: u64) -> Vec<Segment> {
        let (prp1, prp2) = match data {
            DataPointer::Prp { prp1, prp2 } => (prp1, prp2),
            // This driver's SGLs have one descriptor.
            DataPointer::Sgl(first) => {
                let mut segments = Vec::new();
                let mut take = |stretch| match stretch {
                    Stretch::Memory(s) => {
                        segments.push(Segment { at: s.addr, bytes: s.bytes as u32 });
                    }
                    Stretch::Discarded(_) => panic!("a bit bucket"),
                };
                let mut walk = SglWalk::new(bytes, Flow::ToHost);
                walk.supply(&[first], &mut take).unwrap();
                walk.finish().unwrap();
                return segments;
            }
        };
        let mut walk = PrpWalk::new(prp1, prp2, bytes, 4096).unwrap();
        let mut segments = Vec::new();
        let take = |s: wire::nvme::prp::Segment| Segment { at: s.addr, bytes: s.bytes as u32 };
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => segments.push(take(segment)),
                Step::NeedList { addr, entries } => {
                    let mut raw = vec![0; entries as usize * 8];
                    let from = [Segment { at: addr, bytes: raw.len() as u32 }];
                    self.device.read(&from, &mut raw, Carry::All).await.unwrap();
                    let list: Vec<u64> = raw
                        .chunks_exact(8)
                        .map(|entry| u64::from_le_bytes(entry.try_into().unwrap()))
                        .collect();
                    segments.extend(walk.supply(&list).unwrap().map(take));
                }
            }
        }
        segments
    }
}
