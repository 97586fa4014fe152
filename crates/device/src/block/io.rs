//! Execution of commands: read, write, flush.

use bus::{DevicePort, Direct, DmaError, Posting, Segment};
use media::{Extent, Media, MediaError};
use wire::block::descriptor::{Command, Descriptor, Operation, PAGE_BYTES, Status};

use super::Front;
use crate::moved::{self, Blocks};

fn of_dma(error: DmaError) -> Status {
    match error {
        DmaError::Address(_) => Status::BAD_ADDRESS,
        DmaError::Unreadable => Status::UNREADABLE,
    }
}

fn of_media(error: MediaError) -> Status {
    match error {
        MediaError::Range => Status::OUT_OF_RANGE,
        MediaError::Unreadable => Status::UNREADABLE,
        MediaError::Full => Status::FULL,
        _ => Status::WRITE_FAULT,
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Executes one parsed command and returns its status.
    pub(super) async fn execute(&self, number: usize, descriptor: Descriptor) -> Status {
        let done = match descriptor.parse() {
            Ok(command) => match command.operation {
                Operation::Read => self.read(number, command).await,
                Operation::Write { fua } => self.write(number, command, fua).await,
                Operation::Flush => self.media.flush().await.map_err(of_media),
            },
            Err(status) => Err(status),
        };
        self.port.spend(self.costs.post).await;
        done.err().unwrap_or(Status::DONE)
    }

    /// Medium, engine, link. The descriptor is returned after that.
    async fn read(&self, number: usize, command: Command) -> Result<(), Status> {
        let (to, at) = self.validate(command)?;
        if let Some(direct) = self.port.direct() {
            direct.prefetch(Segment { bytes: command.bytes, ..to });
        }
        let ready = self.media.read(at).await.map_err(of_media)?;
        let _engine = self.engine_for_data(number).await;
        // The rest of the page is padding: it takes link time, but nothing is written there.
        let blocks = Blocks { media: &*self.media, at, flip: None };
        self.port.write(&[to], &blocks, Posting::STRICT, ready).await.map_err(of_dma)
    }

    /// Engine, link round trip, medium.
    async fn write(&self, number: usize, command: Command, fua: bool) -> Result<(), Status> {
        let (from, at) = self.validate(command)?;
        let mut room = self.lend(number);
        let engine = self.engine_for_data(number).await;
        self.port
            .read(&[from], &mut room, moved::carry(self.media.head()))
            .await
            .map_err(of_dma)?;
        drop(engine);
        self.rt.record(self.stages.transfer);
        let data = &room[..command.bytes as usize];
        self.media.write(at, data).await.map_err(of_media)?;
        if fua {
            self.media.flush().await.map_err(of_media)?;
        }
        Ok(())
    }

    /// Validates the range; returns the page in host memory and the blocks.
    fn validate(&self, command: Command) -> Result<(Segment, Extent), Status> {
        let block_bytes = u64::from(self.media.block_bytes());
        let (offset, bytes) = (command.offset, u64::from(command.bytes));
        if !offset.is_multiple_of(block_bytes) || !bytes.is_multiple_of(block_bytes) {
            return Err(Status::INVALID_FIELD);
        }
        let (block, blocks) = (offset / block_bytes, bytes / block_bytes);
        if block > self.media.blocks() || blocks > self.media.blocks() - block {
            return Err(Status::OUT_OF_RANGE);
        }
        let page = Segment { at: command.at, bytes: PAGE_BYTES };
        Ok((page, Extent { block, blocks: blocks as u32 }))
    }
}
