//! The way of a call through a kernel to a block driver, as work of the caller's core: into the kernel, the
//! file layer, then piece by piece the block layer, the driver, its command and one copy, and out of the
//! kernel. If DMA does not see the caches of the cores, their lines are written back or dropped before a
//! command, and dropped again after a read, as they may have been fetched meanwhile.
//!
//! A driver that polls waits in the call itself. One that sleeps until an interrupt has its context switches
//! and its interrupt in the breakdown of its commands.

use std::pin::pin;

use bus::{Buffer, Cost, HostPort};
use host::BlockDevice;
use plan::{LINE_BYTES, Plan};
use wire::Lba;
use workload::pattern::OpKind;

use super::op_trace::OpTrace;
use super::{Caller, Engine, Layer, Way};

/// Layers of the way, and its largest piece.
#[derive(Clone, Copy)]
pub struct KernelPath {
    entry: Layer,
    file: Layer,
    block: Layer,
    driver: Layer,
    copy: Layer,
    sync: Layer,
    exit: Layer,
    piece_bytes: usize,
}

impl KernelPath {
    /// The way of this plan; none in a live world, where the work itself takes the time.
    pub fn of(plan: &Plan, layer: impl Fn(&str) -> Layer) -> Option<KernelPath> {
        let path = plan.host.path.as_ref()?;
        let entry = layer("call entry");
        (entry.cost != Cost::NONE).then(|| KernelPath {
            entry,
            file: layer("file layer"),
            block: layer("block layer"),
            driver: layer("block driver"),
            copy: layer("copy"),
            sync: layer("cache sync"),
            exit: layer("call exit"),
            piece_bytes: path.piece_bytes as usize,
        })
    }
}

impl<D: BlockDevice + Clone + 'static, P: HostPort> Engine<D, P> {
    async fn work_of(&self, layer: Layer, times: u32, op_trace: &mut OpTrace) {
        let before = self.rt.now();
        self.setup.port.spend_times(layer.cost, times).await;
        op_trace.add_layer(layer.stage, before, self.rt.now());
    }

    pub(super) async fn enter_kernel(&self, path: &KernelPath, op_trace: &mut OpTrace) {
        self.work_of(path.entry, 1, op_trace).await;
        self.work_of(path.file, 1, op_trace).await;
    }

    pub(super) async fn leave_kernel(&self, path: &KernelPath, op_trace: &mut OpTrace) {
        self.work_of(path.exit, 1, op_trace).await;
    }

    /// Reads or writes all of `buffer`, one piece after the other.
    pub(super) async fn through_kernel(
        &self,
        path: &KernelPath,
        way: Way,
        lba: u64,
        buffer: Buffer,
        caller: &mut Caller<D, P>,
    ) -> Result<(), String> {
        let most = path.piece_bytes.min(self.command_bytes_max);
        let mut from = 0;
        while from < buffer.bytes() {
            let bytes = most.min(buffer.bytes() - from);
            let (piece, at) = (buffer.part(from, bytes), lba + self.blocks(from as u64));
            let lines = (bytes as u32).div_ceil(LINE_BYTES);
            self.work_of(path.block, 1, &mut caller.op_trace).await;
            self.work_of(path.driver, 1, &mut caller.op_trace).await;
            self.work_of(path.sync, lines, &mut caller.op_trace).await;
            caller.op_trace.longest.names(at, bytes as u32);
            let (kind, result) = if let Way::Write { fua } = way {
                self.work_of(path.copy, lines, &mut caller.op_trace).await;
                (OpKind::Write, pin!(self.disk.write(Lba(at), piece, fua)).await.1)
            } else {
                (OpKind::Read, pin!(self.disk.read(Lba(at), piece)).await.1)
            };
            caller.op_trace.add_request_trace(&self.rt);
            // The work that follows is not of this command.
            self.rt.detach_trace();
            result.map_err(|error| self.failed(kind, error))?;
            if kind == OpKind::Read {
                self.work_of(path.sync, lines, &mut caller.op_trace).await;
                self.work_of(path.copy, lines, &mut caller.op_trace).await;
            }
            from += bytes;
        }
        Ok(())
    }
}
