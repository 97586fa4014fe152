//! The table `[link]`: a PCIe link with the hops between its ends.

use bus::link::{Credits, HeldUp, LinkSpec};
use runtime::Span;
use wire::pcie::Generation;

use super::fields::{Fields, Source::Optional, Source::Required};
use super::units::size_text;

/// Link widths (PCIe base 5.0, 1.2) without x12, which is not in use.
pub(super) const LANES: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Bytes of a flow-control data credit (PCIe base 5.0, 2.6.1).
const CREDIT_BYTES: u64 = 16;

/// Upper limit of the hold-up time of a packet and of the return delay of credits.
const HOLD_MAX: Span = Span::s(1);

/// Parses the link, and whether data writes have the relaxed-ordering attribute.
pub(super) fn read(fields: Fields<'_>) -> Option<(LinkSpec, bool)> {
    let generation = fields.choice(
        "generation",
        &[
            ("gen1", Generation::Gen1),
            ("gen2", Generation::Gen2),
            ("gen3", Generation::Gen3),
            ("gen4", Generation::Gen4),
            ("gen5", Generation::Gen5),
        ],
    );
    let lanes_are = |n| LANES.contains(&n);
    let lanes = fields.number_where("lanes", Optional, lanes_are, "1, 2, 4, 8, 16 or 32 lanes");
    let payload = |bytes: u64| bytes.is_power_of_two() && (128..=4096).contains(&bytes);
    let payloads = "a power of two from \"128 B\" to \"4 KiB\"";
    let mps = fields.size("mps", Optional, payload, payloads);
    let mrrs = fields.size("mrrs", Optional, payload, payloads);
    let boundary = |bytes| bytes == 64 || bytes == 128;
    let rcb = fields.size("rcb", Optional, boundary, "\"64 B\" or \"128 B\"");
    let completion_bytes = completion_bytes(&fields, rcb, mps);
    let ecrc = fields.boolean("ecrc");
    let latency = fields.cost("latency");
    let host_read = fields.cost("host_read");
    let device_read = fields.cost("device_read");
    let tlps_per_dllp = fields.number("tlps_per_dllp", Required, 1..=1024);
    let relaxed_ordering = fields.boolean("relaxed_ordering");
    let hops = hops(&fields);
    let credits = fields.table_if("credits", |table| credits(table, mps));
    let held_up = fields.table_if("held_up", held_up);
    let coherent = fields.boolean_or("coherent", false);
    fields.done();
    let spec = LinkSpec {
        generation: generation?,
        lanes: lanes? as u8,
        mps: mps? as u32,
        mrrs: mrrs? as u32,
        rcb: rcb? as u32,
        completion_bytes: completion_bytes? as u32,
        ecrc: ecrc?,
        latency: latency? + hops?,
        host_read: host_read?,
        device_read: device_read?,
        tlps_per_dllp: tlps_per_dllp? as u32,
        credits: credits?,
        held_up: held_up?,
        coherent: coherent?,
    };
    Some((spec, relaxed_ordering?))
}

/// Completion size: a multiple of the read completion boundary, at most `mps` (PCIe base 5.0, 2.3.1.1).
fn completion_bytes(fields: &Fields<'_>, rcb: Option<u64>, mps: Option<u64>) -> Option<u64> {
    // Errors in `rcb` and `mps` have been reported; assume the most permissive values.
    let (rcb, mps) = (rcb.unwrap_or(64), mps.unwrap_or(4096));
    let good = |bytes: u64| bytes > 0 && bytes.is_multiple_of(rcb) && bytes <= mps;
    let (step, most) = (size_text(rcb), size_text(mps));
    let expected = format!("a multiple of link.rcb ({step}) up to link.mps ({most})");
    fields.size("completion_bytes", Optional, good, &expected)
}

/// Latency that switches and chipsets add in each direction.
fn hops(fields: &Fields<'_>) -> Option<Span> {
    let each: Vec<_> = fields
        .tables("hops")
        .into_iter()
        .map(|hop| {
            let name = hop.text("name", "the name of the hop");
            let latency = hop.cost("latency");
            hop.done();
            name.and(latency)
        })
        .collect();
    each.into_iter().try_fold(Span::ZERO, |sum, hop| Some(sum + hop?))
}

/// Flow-control credits, which limit the link.
fn credits(table: Fields<'_>, mps: Option<u64>) -> Option<Credits> {
    let least = mps.unwrap_or(CREDIT_BYTES) / CREDIT_BYTES;
    let headers = table.number("posted_headers", Required, 1..=127);
    let enough = |units| (least..=2047).contains(&units);
    let expected = format!("units of 16 B from {least}, one packet of link.mps, to 2047");
    let data = table.number_where("posted_data", Required, enough, &expected);
    let return_after = table.span("return_after", Required, Span::ZERO..=HOLD_MAX);
    table.done();
    let (headers, data) = (headers? as u32, data? as u32);
    Some(Credits { headers, data, return_after: return_after? })
}

/// Random delays of packets inside the root complex.
fn held_up(table: Fields<'_>) -> Option<HeldUp> {
    let one_in = table.number("one_in", Required, 1..=1_000_000_000);
    let span = table.span("span", Required, Span::ZERO..=HOLD_MAX);
    table.done();
    Some(HeldUp { one_in: one_in?, span: span? })
}
