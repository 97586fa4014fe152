//! I/O Responses Generator: answers bios in submission order.

use alloc::rc::Rc;

use bus::HostPort;
use wire::block::descriptor::{Operation, PAGE_BYTES};

use super::ring::Ring;

/// Answers ended bios, as long as the ring has tasks.
pub(super) async fn generate<P: HostPort>(ring: Rc<Ring<P>>) {
    let rt = ring.rt().clone();
    loop {
        let observed = ring.ended.version();
        while let Some((count, end)) = ring.bios.oldest_ended() {
            let place = ring.bios.place(count) as u16;
            rt.attach_trace(0, place);
            rt.record(ring.stages.order);
            ring.port.spend(ring.costs.complete).await;
            rt.detach_trace();
            // A reset meanwhile may have made the bio pending again.
            if ring.bios.oldest_ended() != Some((count, end)) {
                continue;
            }
            let bio = ring.bios.bio(count);
            let request = bio.request.get();
            unpad(&ring, count);
            ring.empty_oldest();
            ring.rt().log("host", "answers", u64::from(place), u64::from(request));
            ring.bios.ended(&rt, request, end, || {
                rt.attach_trace(0, place);
                rt.move_trace_to(1, request)
            });
            rt.detach_trace();
        }
        if ring.lifecycle.has_ended() {
            return;
        }
        ring.ended.changed(&rt, observed).await;
    }
}

/// Copies a read from its bounce page to the request's buffer.
fn unpad<P: HostPort>(ring: &Ring<P>, count: u32) {
    let bio = ring.bios.bio(count);
    let command = bio.command.get();
    let Some(at) = bio.padded_at.get().filter(|_| command.operation == Operation::Read) else {
        return;
    };
    let mut page = [0; PAGE_BYTES as usize];
    let bytes = &mut page[..command.bytes as usize];
    ring.page(count).copy_out(0, bytes);
    ring.bios.with_buffer(bio.request.get(), |buffer| {
        if let Some(buffer) = buffer {
            buffer.copy_in(at as usize, bytes);
        }
    });
}
