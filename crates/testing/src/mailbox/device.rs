//! Device side: one task per mailbox; one function processes a request from start to end.

use std::rc::Rc;

use ::wire::BusAddr;
use bus::{Carry, DevicePort, Payload, Posting, Segment, Unreadable};
use media::{Extent, Media};

use runtime::stage;

use super::wire::{self, Direction, Request, Status};

/// Stages that the device records, in addition to its costs.
pub const STAGES: &[&str] = &["ring", "fetch request"];

/// Starts a device on `port`, with one task per mailbox.
pub fn start<P: DevicePort, M: Media>(port: P, medium: Rc<M>) {
    port.store(wire::BLOCKS, medium.blocks() as u32);
    port.store(wire::BLOCKS + 4, (medium.blocks() >> 32) as u32);
    port.store(wire::BLOCK_BYTES, medium.block_bytes());
    for number in 0..wire::MAILBOXES {
        port.rt().spawn(serve(port.clone(), medium.clone(), number));
    }
}

async fn serve<P: DevicePort, M: Media>(port: P, medium: Rc<M>, mailbox: u16) {
    let rt = port.rt().clone();
    let (ring, fetch) = (stage!(rt, STAGES, "ring"), stage!(rt, STAGES, "fetch request"));
    let (parse, post) = (port.cost("parse"), port.cost("post completion"));
    let bell = wire::BELLS + 4 * u32::from(mailbox);
    let (mut rung, mut buffer) = (0, Vec::new());
    loop {
        rung = port.on_registers(|| Some(port.load(bell)).filter(|now| *now != rung)).await;
        rt.attach_trace(0, mailbox);
        rt.record(ring);
        let base = u64::from(port.load(wire::BASE)) | u64::from(port.load(wire::BASE + 4)) << 32;
        let at = BusAddr(base.wrapping_add(u64::from(mailbox) * wire::STRIDE));
        let mut bytes = [0; wire::REQUEST_BYTES];
        let from = Segment { at, bytes: wire::REQUEST_BYTES as u32 };
        if port.read(&[from], &mut bytes, Carry::All).await.is_ok() {
            rt.record(fetch);
            port.spend(parse).await;
            let status = perform(&port, &*medium, &bytes, &mut buffer).await;
            port.spend(post).await;
            let word = wire::status_word(rung, status).to_le_bytes();
            // A mailbox outside host memory cannot receive a status.
            let _ = port.publish(BusAddr(at.0.wrapping_add(wire::STATUS_AT)), &word, false);
        }
        rt.detach_trace();
    }
}

async fn perform<P: DevicePort, M: Media>(
    port: &P,
    medium: &M,
    bytes: &[u8; wire::REQUEST_BYTES],
    buffer: &mut Vec<u8>,
) -> Status {
    let Some(request) = Request::parse(bytes) else { return Status::Refused };
    let length = u64::from(request.blocks) * u64::from(medium.block_bytes());
    let fits = length <= u64::from(wire::TRANSFER_BYTES_MAX);
    if request.direction != Direction::Flush && (!fits || length == 0) {
        return Status::Refused;
    }
    let at = Extent { block: request.lba.0, blocks: request.blocks };
    let there = Segment { at: request.buffer, bytes: length as u32 };
    let done = match request.direction {
        Direction::Read => match medium.read(at).await {
            Ok(ready) => {
                let blocks = Blocks { medium, at };
                port.write(&[there], &blocks, Posting::STRICT, ready).await.is_ok()
            }
            Err(_) => false,
        },
        Direction::Write => {
            buffer.resize(length as usize, 0);
            let carry = medium
                .head()
                .map_or(Carry::All, |head| Carry::Heads { bytes: head.bytes, of: head.of });
            port.read(&[there], buffer, carry).await.is_ok()
                && medium.write(at, buffer).await.is_ok()
        }
        Direction::Flush => medium.flush().await.is_ok(),
    };
    if done { Status::Done } else { Status::Failed }
}

struct Blocks<'a, M> {
    medium: &'a M,
    at: Extent,
}

impl<M: Media> Payload for Blocks<'_, M> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        self.medium.runs(self.at, put).map_err(|_| Unreadable)
    }
}
