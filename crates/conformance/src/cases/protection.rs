//! Protection information: NVM command set 1.0, 5.2.

use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::identify::IdentifyNamespace;
use wire::nvme::io::{Access, Command, Request, WriteZeroes};
use wire::nvme::pi::{self, Checks, Kind, Protection};
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::IntoBytes;

use crate::bench::{Bench, Pair, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVM command set 1.0",
    number: "5.2",
    title: "end-to-end data protection",
    cases: cases! {
        Erases protection_is_chosen_by_format "Format NVM sets DPS, and MS of the format is at least eight";
        Erases protection_made_by_the_controller
            "PRACT: information is inserted at a write, and is as the formula has it";
        Erases protection_brought_by_the_host "without PRACT it goes beside the data, and comes back";
        Erases guards_that_differ "a guard that is not the data's: End-to-end Guard Check Error";
        Erases application_tags_that_differ "of bits under the mask: End-to-end Application Tag Check Error";
        Erases reference_tags_that_differ "another block's: End-to-end Reference Tag Check Error";
        Erases unchecked_where_prchk_is_clear "what PRCHK does not name is not compared";
        Erases tags_of_another_block_are_refused
            "of type 1, a reference tag that is not the block's: Invalid Protection Information";
        Erases unwritten_blocks_are_not_checked "metadata of all ones, and nothing compared";
        Erases protected_zeroes "Write Zeroes with PRACT leaves zeros that are protected";
        Erases metadata_behind_each_block
            "a format with MSET sets FLBAS bit 4: what goes beside the data follows each block";
        Erases information_behind_each_block_is_checked "there too: End-to-end Guard Check Error";
        Erases information_behind_each_block_is_taken_away
            "PRACT, where it is all the metadata that there are: the data alone move";
    },
}];

/// A namespace with PI of type 1.
struct WithPi {
    pair: Pair,
    data: BusAddr,
    beside: BusAddr,
    /// The format before the case.
    before: FormatNvm,
}

const LBA: u64 = 11;

fn all(tag: u16) -> Protection {
    let (checks, mask) = (Checks::ALL, 0xffff);
    Protection { act: false, checks, reference: LBA as u32, application: tag, mask }
}

fn act(tag: u16) -> Protection {
    Protection { act: true, ..all(tag) }
}

/// Number of a format with the current block size whose metadata are PI only.
fn format_with(ns: &IdentifyNamespace) -> Option<u8> {
    let ds = ns.format()?.ds;
    let formats = ns.lbaf.iter().take(usize::from(ns.nlbaf.min(15)) + 1);
    let fits = |format: &wire::nvme::identify::LbaFormat| {
        usize::from(format.ms.get()) == pi::BYTES && format.ds == ds
    };
    formats.clone().position(fits).map(|number| number as u8)
}

/// Formats the namespace with PI, runs the case, and restores the format.
async fn with_pi(
    b: &mut Bench,
    case: impl AsyncFnOnce(&mut Bench, &mut WithPi) -> Verdict,
) -> Verdict {
    let (mc, dpc) = (b.ns.mc, b.ns.dpc);
    needs!(dpc & 1 != 0 && dpc & 0x18 != 0, "protection information of type 1: DPC is {dpc:#x}");
    needs!(mc & 2 != 0, "metadata in a buffer of their own: MC is {mc:#x}");
    let format = format_with(&b.ns);
    needs!(format.is_some(), "a format with eight bytes of metadata and blocks as long as now");
    let before = FormatNvm { format: b.ns.flbas & 0xf, ..FormatNvm::default() };
    let pair = b.plain_io().await?;
    let after = FormatNvm { format: format.unwrap_or(0), protection: 1, ..before };
    b.admin_ok(&admin::format_nvm(b.cid(), b.nsid, after)).await?;
    let (data, beside) = (b.place(4 * b.block() + 4096, 4096)?, b.place(64, 64)?);
    let mut with_pi = WithPi { pair, data, beside, before };
    let verdict = case(b, &mut with_pi).await;
    b.admin_ok(&admin::format_nvm(b.cid(), b.nsid, with_pi.before)).await?;
    verdict
}

async fn run(
    b: &Bench,
    g: &mut WithPi,
    (blocks, pi_fields): (u32, Protection),
    make: impl FnOnce(Access) -> Command,
) -> Verdict<Status> {
    let access =
        Access { protection: pi_fields, metadata: g.beside, ..Access::of(Lba(LBA), blocks) };
    let data = b.data(g.data, u64::from(blocks) * b.block())?;
    let request = Request { cid: b.cid(), nsid: b.nsid, data, command: make(access) };
    Ok(b.run(&mut g.pair, &request.to_sqe()).await?.status())
}

/// Writes `data` with metadata `beside`.
async fn write(
    b: &Bench,
    g: &mut WithPi,
    data: &[u8],
    (beside, pi_fields): (&[u8], Protection),
) -> Verdict<Status> {
    b.store_bytes(g.data, data);
    b.store_bytes(g.beside, beside);
    run(b, g, ((data.len() as u64 / b.block()) as u32, pi_fields), Command::Write).await
}

/// Reads; returns the status, the data, and the metadata unless they are stripped.
async fn read(
    b: &Bench,
    g: &mut WithPi,
    pi_fields: (u32, Protection),
) -> Verdict<(Status, Vec<u8>, Vec<u8>)> {
    let bytes = u64::from(pi_fields.0) * b.block();
    b.store_bytes(g.data, &vec![0; bytes as usize]);
    let status = run(b, g, pi_fields, Command::Read).await?;
    Ok((status, b.bytes(g.data, bytes as usize), b.bytes(g.beside, 8 * pi_fields.0 as usize)))
}

fn well(what: &str, status: Status) -> Verdict {
    hold!(status.is_ok(), "{what} ends with {status}");
    Ok(())
}

fn tuples(b: &Bench, pi_fields: Protection, data: &[u8]) -> Vec<u8> {
    let blocks = (0..).zip(data.chunks(b.block() as usize));
    blocks
        .flat_map(|(number, block)| pi_fields.tuple(Kind::One, number, block).as_bytes().to_vec())
        .collect()
}

/// As [`with_pi`], with metadata behind each block's data.
async fn interleaved(
    b: &mut Bench,
    case: impl AsyncFnOnce(&mut Bench, &mut WithPi) -> Verdict,
) -> Verdict {
    needs!(b.ns.mc & 1 != 0, "metadata behind each block's data: MC is {:#x}", b.ns.mc);
    with_pi(b, async |b, g| {
        b.ask_what_it_is().await?;
        let format = b.ns.flbas & 0xf;
        let inline = FormatNvm { format, protection: 1, metadata_inline: true, ..g.before };
        b.admin_ok(&admin::format_nvm(b.cid(), b.nsid, inline)).await?;
        // The metadata pointer must be ignored.
        g.beside = BusAddr(u64::MAX);
        case(b, g).await
    })
    .await
}

/// Data with each block's PI behind it.
fn with_tuples(b: &Bench, data: &[u8], tuples: &[u8]) -> Vec<u8> {
    let blocks = data.chunks(b.block() as usize).zip(tuples.chunks(pi::BYTES));
    blocks.flat_map(|(block, tuple)| [block, tuple].concat()).collect()
}

/// Runs a command on `blocks` blocks that transfers `bytes` bytes.
async fn moved(
    b: &Bench,
    g: &mut WithPi,
    (blocks, bytes, pi_fields): (u32, usize, Protection),
    make: impl FnOnce(Access) -> Command,
) -> Verdict<Status> {
    let access =
        Access { protection: pi_fields, metadata: g.beside, ..Access::of(Lba(LBA), blocks) };
    let data = b.data(g.data, bytes as u64)?;
    let request = Request { cid: b.cid(), nsid: b.nsid, data, command: make(access) };
    Ok(b.run(&mut g.pair, &request.to_sqe()).await?.status())
}

async fn metadata_behind_each_block(b: &mut Bench) -> Verdict {
    interleaved(b, async |b, g| {
        b.ask_what_it_is().await?;
        hold!(b.ns.metadata_is_inline(), "after a format with MSET, FLBAS is {:#x}", b.ns.flbas);
        let data = noise(6, 3 * b.block());
        let whole = with_tuples(b, &data, &tuples(b, all(7), &data));
        b.store_bytes(g.data, &whole);
        let pi_fields = (3, whole.len(), all(7));
        well("a write", moved(b, g, pi_fields, Command::Write).await?)?;
        b.store_bytes(g.data, &vec![0; whole.len()]);
        well("a read of it", moved(b, g, pi_fields, Command::Read).await?)?;
        hold!(b.bytes(g.data, whole.len()) == whole, "other data, or other metadata");
        Ok(())
    })
    .await
}

async fn information_behind_each_block_is_checked(b: &mut Bench) -> Verdict {
    interleaved(b, async |b, g| {
        let data = noise(7, 2 * b.block());
        let mut whole = with_tuples(b, &data, &tuples(b, all(7), &data));
        let guard = 2 * b.block() as usize + pi::BYTES;
        whole[guard] ^= 1;
        b.store_bytes(g.data, &whole);
        let status = moved(b, g, (2, whole.len(), all(7)), Command::Write).await?;
        let expected = Status::GUARD_CHECK_ERROR;
        hold!(status.kind() == expected, "a write ends with {status}, expected {expected}");
        Ok(())
    })
    .await
}

async fn information_behind_each_block_is_taken_away(b: &mut Bench) -> Verdict {
    interleaved(b, async |b, g| {
        let data = noise(8, 2 * b.block());
        b.store_bytes(g.data, &data);
        well("a write with PRACT", moved(b, g, (2, data.len(), act(7)), Command::Write).await?)?;
        let whole = with_tuples(b, &data, &tuples(b, act(7), &data));
        let read = moved(b, g, (2, whole.len(), all(7)), Command::Read).await?;
        well("a read without it", read)?;
        hold!(b.bytes(g.data, whole.len()) == whole, "other data, or other metadata");
        b.store_bytes(g.data, &vec![0xc3; whole.len()]);
        well("a read with PRACT", moved(b, g, (2, data.len(), act(7)), Command::Read).await?)?;
        hold!(b.bytes(g.data, data.len()) == data, "other data");
        let behind = b.bytes(BusAddr(g.data.0 + data.len() as u64), 16);
        hold!(behind == [0xc3; 16], "something was written behind the data");
        Ok(())
    })
    .await
}

async fn protection_is_chosen_by_format(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, _| {
        b.ask_what_it_is().await?;
        let (dps, ms) = (b.ns.dps, b.ns.format().map_or(0, |format| format.ms.get()));
        hold!(dps & 7 == 1 && ms >= 8, "after a format with type 1, DPS is {dps:#x} and MS {ms}");
        Ok(())
    })
    .await
}

async fn protection_made_by_the_controller(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, g| {
        let data = noise(1, 3 * b.block());
        well("a write with PRACT", write(b, g, &data, (&[], act(0x1234))).await?)?;
        let (status, found, beside) = read(b, g, (3, all(0x1234))).await?;
        well("a read of it", status)?;
        hold!(found == data, "other data");
        let expected = tuples(b, act(0x1234), &data);
        hold!(
            beside == expected,
            "protection information is {beside:02x?}, expected {expected:02x?}"
        );
        b.store_bytes(g.beside, &[0xc3; 24]);
        let (status, found, beside) = read(b, g, (3, act(0x1234))).await?;
        well("a read with PRACT", status)?;
        hold!(found == data && beside == [0xc3; 24], "PRACT takes the information away");
        Ok(())
    })
    .await
}

async fn protection_brought_by_the_host(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, g| {
        let data = noise(2, 3 * b.block());
        let brought = tuples(b, all(9), &data);
        well("a write", write(b, g, &data, (&brought, all(9))).await?)?;
        b.store_bytes(g.beside, &[0; 24]);
        let (status, found, beside) = read(b, g, (3, all(9))).await?;
        well("a read of it", status)?;
        hold!(found == data && beside == brought, "other data, or other metadata");
        Ok(())
    })
    .await
}

/// PI with one bit flipped in `byte`.
async fn refused(b: &mut Bench, byte: usize, with: Status) -> Verdict {
    with_pi(b, async |b, g| {
        let data = noise(3, 2 * b.block());
        let mut failed_sanitize = tuples(b, all(5), &data);
        failed_sanitize[8 + byte] ^= 1;
        let status = write(b, g, &data, (&failed_sanitize, all(5))).await?;
        hold!(status.kind() == with, "a write ends with {status}, expected {with}");
        let unchecked = Protection { checks: Checks::default(), ..all(5) };
        well("an unchecked write", write(b, g, &data, (&failed_sanitize, unchecked)).await?)?;
        let (status, ..) = read(b, g, (2, all(5))).await?;
        hold!(status.kind() == with, "a read ends with {status}, expected {with}");
        let (status, ..) = read(b, g, (1, all(5))).await?;
        well("a read of the block before", status)
    })
    .await
}

async fn guards_that_differ(b: &mut Bench) -> Verdict {
    refused(b, 0, Status::GUARD_CHECK_ERROR).await
}

async fn application_tags_that_differ(b: &mut Bench) -> Verdict {
    refused(b, 3, Status::APPLICATION_TAG_CHECK_ERROR).await
}

async fn reference_tags_that_differ(b: &mut Bench) -> Verdict {
    refused(b, 7, Status::REFERENCE_TAG_CHECK_ERROR).await
}

async fn unchecked_where_prchk_is_clear(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, g| {
        let data = noise(4, b.block());
        let unchecked = Protection { checks: Checks::default(), ..all(5) };
        let strange = [1, 2, 3, 4, 5, 6, 7, 8];
        well("a write", write(b, g, &data, (&strange, unchecked)).await?)?;
        let (status, found, beside) = read(b, g, (1, unchecked)).await?;
        well("a read", status)?;
        hold!(found == data && beside == strange, "other data, or other metadata");
        Ok(())
    })
    .await
}

async fn tags_of_another_block_are_refused(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, g| {
        let data = noise(5, b.block());
        let other = Protection { reference: LBA as u32 + 1, ..act(5) };
        let status = write(b, g, &data, (&[], other)).await?;
        let expected = Status::INVALID_PROTECTION_INFORMATION;
        hold!(status.kind() == expected, "a write ends with {status}, expected {expected}");
        Ok(())
    })
    .await
}

async fn unwritten_blocks_are_not_checked(b: &mut Bench) -> Verdict {
    with_pi(b, async |b, g| {
        let (status, _, beside) = read(b, g, (2, all(5))).await?;
        well("a read of blocks that were never written", status)?;
        hold!(beside == [0xff; 16], "their metadata are {beside:02x?}, expected all ones");
        Ok(())
    })
    .await
}

async fn protected_zeroes(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & wire::nvme::identify::oncs::WRITE_ZEROES != 0, "Write Zeroes");
    with_pi(b, async |b, g| {
        let zeroes = |access| Command::WriteZeroes(WriteZeroes { access, deallocate: false });
        well("Write Zeroes", run(b, g, (2, act(3)), zeroes).await?)?;
        let (status, found, _) = read(b, g, (2, all(3))).await?;
        well("a read of them", status)?;
        hold!(found.iter().all(|byte| *byte == 0), "they are no zeros");
        Ok(())
    })
    .await
}
