//! Several SSD controllers behind a bridge that makes them one device.
//!
//! ```text
//!                       ┌ link ── controller: flash software, buffer, chips
//!   front end ── bridge ┤
//!    (PCIe)    protocol └ link ── controller ...
//!              stripes    (SAS)
//! ```
//!
//! Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives Closer to CPU": the bridge
//! "internally converts the PCIe protocol to the SAS protocol", and "stripes the incoming I/O requests over
//! multiple SSD controllers", each with its own flash translation layer. A request is split at stripe
//! boundaries. Each part waits for a tag of its controller, is converted on the way there and back,
//! occupies the controller's processor, and crosses that controller's link once, in FIFO order. The
//! controllers do not coordinate: each runs GC independently, and a request waits for its slowest part.
//!
//! By the same paper the bridge "puts incoming default-block size I/O requests into its internal 2GB DRAM
//! buffer", but "forwards the large sized I/O requests to the underlying flash memory". With
//! [`Options::small_bytes`] a write that is longer, or that continues one so that both together are,
//! completes when it is on flash; others complete in the buffer of their controller.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use media::{
    Boxed, Capabilities, Erase, Extent, Head, Media, MediaError, Purge, Start, Wear, WriteThrough,
};
use runtime::{Line, Pool, Rt, Span, Time, Waits, beside_others, stage};
use wire::sas;

/// Stages recorded by a bridge: waiting for a tag, the converter, a controller's processor or its link; and
/// the service times of these.
pub const STAGES: &[&str] = &["media wait", "media"];

/// Configuration of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Stripe size in bytes, a multiple of the block size: consecutive stripes go to consecutive controllers.
    pub stripe_bytes: u32,
    /// Commands outstanding at each controller (its number of tags).
    pub queue: u32,
    /// Longest run of adjacent writes, bytes, that completes in a buffer. `None`: all do.
    pub small_bytes: Option<u32>,
    /// Service times. `None`: all zero.
    pub timing: Option<Timing>,
}

/// Service times of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time to convert a command, and again to convert its response. The converter is a FIFO server.
    pub conversion: Span,
    /// Time per command on a controller's processor, which is a FIFO server.
    pub command: Span,
    /// Rate of each controller's link, bytes per second and direction.
    pub link_bytes_per_s: u64,
    /// True if the link carries SSP frames ([`wire::sas`]) in two directions: a command, a write's XFER_RDY,
    /// data and the response. Otherwise it carries the data alone, one transfer at a time.
    pub frames: bool,
}

/// Controllers behind a bridge, as one medium.
pub struct Bridge<M> {
    rt: Rt,
    options: Options,
    controllers: Vec<Controller<M>>,
    converter: Line,
    waits: Waits,
    blocks: u64,
    runs: RefCell<Runs>,
    /// Unused part lists, kept to avoid allocation.
    spare: RefCell<Vec<Vec<Part>>>,
}

struct Controller<M> {
    medium: Rc<M>,
    processor: Line,
    /// Link to the controller, and from it.
    links: [Line; 2],
    tags: Pool<()>,
}

/// Directions of a link, from the bridge.
#[derive(Clone, Copy)]
enum Way {
    Down,
    Up,
}

/// The part of a request on one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    controller: usize,
    at: Extent,
    /// Offset of the part in the request, in blocks.
    from: u32,
}

/// Splits a request into parts: `stripe` blocks per stripe, round robin over `controllers`.
fn parts_of(at: Extent, stripe: u64, controllers: u64, parts: &mut Vec<Part>) {
    parts.clear();
    let (mut block, end) = (at.block, at.block + u64::from(at.blocks));
    while block < end {
        let number = block / stripe;
        let next = ((number + 1) * stripe).min(end);
        parts.push(Part {
            controller: (number % controllers) as usize,
            at: Extent {
                block: number / controllers * stripe + block % stripe,
                blocks: (next - block) as u32,
            },
            from: (block - at.block) as u32,
        });
        block = next;
    }
}

/// Runs of adjacent writes, the most recent ones: where each ends, and its length in blocks.
#[derive(Default)]
struct Runs {
    ends: [(u64, u64); RUNS],
    /// The one to be replaced next.
    oldest: usize,
}

/// Runs that are followed: more than there are writers.
const RUNS: usize = 16;

impl Runs {
    /// Length in blocks of the run that ends with this write.
    fn extend(&mut self, at: Extent) -> u64 {
        let (end, blocks) = (at.block + u64::from(at.blocks), u64::from(at.blocks));
        if let Some(run) = self.ends.iter_mut().find(|run| run.1 > 0 && run.0 == at.block) {
            *run = (end, run.1 + blocks);
            return run.1;
        }
        self.ends[self.oldest] = (end, blocks);
        self.oldest = (self.oldest + 1) % RUNS;
        blocks
    }
}

/// Operation of a part, with its data.
#[derive(Clone, Copy)]
enum Work<'a> {
    Read,
    Write(&'a [u8]),
    WriteThrough(&'a [u8]),
    Deallocate,
}

impl<M: WriteThrough> Bridge<M> {
    /// Creates a bridge over these controllers, which must be of equal size.
    ///
    /// # Panics
    /// If `controllers` is empty, or the stripe is not a whole number of blocks.
    pub fn new(rt: &Rt, controllers: Vec<Rc<M>>, options: Options) -> Bridge<M> {
        let block_bytes = controllers[0].block_bytes();
        assert!(options.stripe_bytes > 0 && options.stripe_bytes.is_multiple_of(block_bytes));
        let stripe = u64::from(options.stripe_bytes / block_bytes);
        let least = controllers.iter().map(|medium| medium.blocks()).min().unwrap_or(0);
        let controller = |medium| Controller {
            medium,
            processor: Line::default(),
            links: Default::default(),
            tags: Pool::new((0..options.queue).map(|_| ())),
        };
        Bridge {
            rt: rt.clone(),
            blocks: least / stripe * stripe * controllers.len() as u64,
            controllers: controllers.into_iter().map(controller).collect(),
            converter: Line::default(),
            waits: Waits {
                turn: stage!(rt, STAGES, "media wait"),
                service: stage!(rt, STAGES, "media"),
            },
            options,
            runs: RefCell::default(),
            spare: RefCell::default(),
        }
    }

    /// Dissolves the bridge and returns its controllers.
    pub fn into_controllers(self) -> Vec<Rc<M>> {
        self.controllers.into_iter().map(|controller| controller.medium).collect()
    }

    /// The controllers behind the bridge.
    pub fn controllers(&self) -> impl Iterator<Item = &Rc<M>> {
        self.controllers.iter().map(|controller| &controller.medium)
    }

    fn parts(&self, at: Extent) -> Result<Vec<Part>, MediaError> {
        let end = at.block.checked_add(at.blocks.into()).ok_or(MediaError::Range)?;
        if end > self.blocks {
            return Err(MediaError::Range);
        }
        let mut parts = self.spare.borrow_mut().pop().unwrap_or_default();
        let stripe = u64::from(self.options.stripe_bytes / self.block_bytes());
        parts_of(at, stripe, self.controllers.len() as u64, &mut parts);
        Ok(parts)
    }

    /// Waits for a FIFO server and for its service time.
    async fn pass(&self, line: &Line, span: Span) {
        let turn = line.reserve(self.rt.now(), span);
        self.rt.record_turn(self.waits, turn);
        self.rt.sleep_until(turn.end).await;
    }

    async fn convert(&self) {
        if let Some(timing) = self.options.timing {
            self.pass(&self.converter, timing.conversion).await;
        }
    }

    /// The data of a part, on the link.
    async fn carry(&self, controller: &Controller<M>, way: Way, blocks: u32) {
        let Some(timing) = self.options.timing else { return };
        let bytes = u64::from(blocks) * u64::from(self.block_bytes());
        match timing.frames {
            true => self.cross(controller, way, sas::data(bytes)).await,
            false => self.cross(controller, Way::Down, bytes).await,
        }
    }

    /// A frame without data, if the link carries frames.
    async fn frame(&self, controller: &Controller<M>, way: Way, bytes: u32) {
        if self.options.timing.is_some_and(|timing| timing.frames) {
            self.cross(controller, way, bytes.into()).await;
        }
    }

    async fn cross(&self, controller: &Controller<M>, way: Way, bytes: u64) {
        let Some(timing) = self.options.timing else { return };
        let ps = u128::from(bytes) * 1_000_000_000_000;
        let span = ps.div_ceil(u128::from(timing.link_bytes_per_s.max(1)));
        self.pass(&controller.links[way as usize], Span(span as u64)).await;
    }

    /// Executes one part: takes a tag, converts, does the work, converts the response.
    async fn work(&self, part: Part, work: Work<'_>) -> Result<(), MediaError> {
        let controller = &self.controllers[part.controller];
        let _tag = match controller.tags.try_take() {
            Some(()) => Tag { rt: &self.rt, of: &controller.tags },
            None => {
                controller.tags.take(&self.rt).await;
                Tag { rt: &self.rt, of: &controller.tags }
            }
        };
        self.rt.record(self.waits.turn);
        self.convert().await;
        self.frame(controller, Way::Down, sas::command()).await;
        if let Some(timing) = self.options.timing {
            self.pass(&controller.processor, timing.command).await;
        }
        let medium = &controller.medium;
        match work {
            Work::Read => {
                let ready = medium.read(part.at).await?;
                if ready > self.rt.now() {
                    self.rt.sleep_until(ready).await;
                    self.rt.record(self.waits.service);
                }
                self.carry(controller, Way::Up, part.at.blocks).await;
            }
            Work::Write(data) => {
                self.bring(controller, part.at.blocks).await;
                medium.write(part.at, self.data_of(part, data)).await?;
            }
            Work::WriteThrough(data) => {
                self.bring(controller, part.at.blocks).await;
                medium.write_through(part.at, self.data_of(part, data)).await?;
            }
            Work::Deallocate => medium.deallocate(part.at).await?,
        }
        self.frame(controller, Way::Up, sas::response()).await;
        self.convert().await;
        Ok(())
    }

    /// The data of a write, once the controller is ready for them.
    async fn bring(&self, controller: &Controller<M>, blocks: u32) {
        self.frame(controller, Way::Up, sas::transfer_ready()).await;
        self.carry(controller, Way::Down, blocks).await;
    }

    fn data_of<'a>(&self, part: Part, data: &'a [u8]) -> &'a [u8] {
        let block = self.block_bytes() as usize;
        &data[part.from as usize * block..][..part.at.blocks as usize * block]
    }

    /// Returns true if this write goes to flash past the buffers.
    fn is_large(&self, at: Extent) -> bool {
        self.options.small_bytes.is_some_and(|small| {
            let run = self.runs.borrow_mut().extend(at);
            run.saturating_mul(self.block_bytes().into()) > small.into()
        })
    }

    /// Executes all parts of a request in parallel.
    async fn all(&self, at: Extent, work: Work<'_>) -> Result<(), MediaError> {
        let parts = self.parts(at)?;
        let done = match parts[..] {
            [part] => self.work(part, work).await,
            _ => together(parts.iter().map(|part| self.work(*part, work))).await,
        };
        self.spare.borrow_mut().push(parts);
        done
    }
}

/// A tag; returned to its pool when dropped.
struct Tag<'a> {
    rt: &'a Rt,
    of: &'a Pool<()>,
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        self.of.give(self.rt, ());
    }
}

/// Runs all futures to completion and returns the first error.
async fn together<F: Future<Output = Result<(), MediaError>>>(
    work: impl Iterator<Item = F>,
) -> Result<(), MediaError> {
    let mut left: Vec<Pin<Box<F>>> = work.map(Box::pin).collect();
    let mut done = Ok(());
    poll_fn(|cx| {
        left.retain_mut(|one| match one.as_mut().poll(&mut beside_others(cx)) {
            Poll::Ready(ended) => {
                done = done.and(ended);
                false
            }
            Poll::Pending => true,
        });
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done
}

impl<M: WriteThrough> Media for Bridge<M> {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_bytes(&self) -> u32 {
        self.controllers[0].medium.block_bytes()
    }

    fn head(&self) -> Option<Head> {
        self.controllers[0].medium.head()
    }

    /// Returns when the last part has crossed its link.
    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.all(at, Work::Read).await?;
        Ok(Time::ZERO)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        let (parts, block) = (self.parts(at)?, self.block_bytes());
        let scratch_guard = parts.iter().try_for_each(|part| {
            let from = part.from * block;
            let medium = &self.controllers[part.controller].medium;
            medium.runs(part.at, &mut |offset, run| put(from + offset, run))
        });
        self.spare.borrow_mut().push(parts);
        scratch_guard
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let large = self.is_large(at);
        self.all(at, if large { Work::WriteThrough(data) } else { Work::Write(data) }).await
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        self.all(at, Work::Deallocate).await
    }

    async fn flush(&self) -> Result<(), MediaError> {
        self.convert().await;
        together(self.controllers.iter().map(|controller| controller.medium.flush())).await?;
        self.convert().await;
        Ok(())
    }

    /// Those of the first controller, which stores the label; the others are alike.
    fn capabilities(&self) -> Capabilities<'_> {
        let first = self.controllers[0].medium.capabilities();
        Capabilities {
            start: first.start.map(|_| self as _),
            labels: first.labels,
            purge: first.purge.whole().map_or(first.purge, |_| Purge::Whole(self)),
            wear: first.wear.map(|_| self as _),
            ..Capabilities::default()
        }
    }
}

impl<M: WriteThrough> Bridge<M> {
    fn each(&self) -> impl Iterator<Item = Capabilities<'_>> {
        self.controllers.iter().map(|one| one.medium.capabilities())
    }

    fn each_whole(&self) -> impl Iterator<Item = Option<&dyn Erase>> {
        self.each().map(|one| one.purge.whole())
    }
}

impl<M: WriteThrough> Start for Bridge<M> {
    fn ready(&self) -> Boxed<'_, ()> {
        Box::pin(async {
            for controller in &self.controllers {
                media::ready(&*controller.medium).await;
            }
        })
    }

    /// Controllers start in parallel, so the slowest determines the time.
    fn ready_within(&self) -> Span {
        self.each().filter_map(|one| Some(one.start?.ready_within())).max().unwrap_or_default()
    }
}

impl<M: WriteThrough> Wear for Bridge<M> {
    /// Of the flash that is worn most.
    fn percent_used(&self) -> u8 {
        self.each().filter_map(|one| Some(one.wear?.percent_used())).max().unwrap_or(0)
    }
}

impl<M: WriteThrough> Erase for Bridge<M> {
    /// Controllers erase in parallel: the slowest one's time.
    fn erase_time(&self) -> Option<Span> {
        self.each_whole().filter_map(|whole| whole?.erase_time()).max()
    }

    /// Erases all controllers in parallel. They are alike, so the progress of the first is reported.
    fn erase<'a>(
        &'a self,
        progress: &'a mut dyn FnMut(u32, u32),
    ) -> Boxed<'a, Result<(), MediaError>> {
        Box::pin(async move {
            self.convert().await;
            let progress = RefCell::new(progress);
            let erase = async |(number, whole): (usize, Option<&dyn Erase>)| {
                let mut tell = |done, of| {
                    if number == 0 {
                        (*progress.borrow_mut())(done, of);
                    }
                };
                whole.ok_or(MediaError::WriteFault)?.erase(&mut tell).await
            };
            together(self.each_whole().enumerate().map(erase)).await?;
            self.convert().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Parts are in order and contiguous, and each block maps to exactly one place on one controller.
        #[test]
        fn stripe_mapping_is_bijective(
            stripe in 1_u64..9,
            controllers in 1_u64..6,
            block in 0_u64..200,
            blocks in 1_u32..100,
        ) {
            let mut parts = Vec::new();
            parts_of(Extent { block, blocks }, stripe, controllers, &mut parts);
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(part.from, next);
                next += part.at.blocks;
                for at in 0..u64::from(part.at.blocks) {
                    let whole = block + u64::from(part.from) + at;
                    let inner = part.at.block + at;
                    let back = (inner / stripe * controllers + part.controller as u64) * stripe;
                    prop_assert_eq!(back + inner % stripe, whole);
                }
            }
            prop_assert_eq!(next, blocks);
        }
    }
}
