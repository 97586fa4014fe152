//! The table `[array]`: several such devices below one switch, which the host makes one of. A plan may be
//! without it; its machine then has one device, and no switch.

use bus::sim::NamedCost;
use bus::switch::SwitchSpec;

use super::Plan;
use super::fields::{Fields, Source::Welcome};
use super::host::costs;
use super::link::LANES;

/// What an array costs on a host core: 512 bytes added to a parity.
const COSTS: &[&str] = &["parity"];

/// When members of an array collect, where the host has a say in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collections {
    /// Each when it has to.
    Free,
    /// One at a time, before it has to; another only when its writes would wait.
    InTurn,
    /// All, when one has to.
    Together,
}

#[derive(Clone, Debug)]
pub struct Array {
    pub devices: u32,
    /// A chunk of each stripe is the parity of the others.
    pub parity: bool,
    /// Bytes that lie on one before the next has its turn.
    pub chunk_bytes: u32,
    /// Lanes of the link above the switch, which is of the generation of those below.
    pub lanes: u8,
    /// How the members' collections are agreed on.
    pub collections: Collections,
    /// A member that is out from the beginning.
    pub out: Option<u32>,
    /// Entries of the journal that closes the write hole; none: it is open.
    pub journal: Option<u32>,
    pub costs: Vec<NamedCost>,
}

impl Array {
    /// The link above the switch, where those below are this plan's.
    pub fn above(&self, plan: &Plan) -> SwitchSpec {
        SwitchSpec { generation: plan.link.generation, lanes: self.lanes }
    }
}

/// The most entries of a journal.
const JOURNAL_MAX: u64 = 1024;

/// Reads the table, for blocks of so many bytes.
pub(super) fn read(fields: Fields<'_>, block_bytes: Option<u64>) -> Option<Array> {
    let devices = fields.number("devices", Welcome, 1..=array::MEMBERS_MAX as u64);
    let parity = fields.choice("layout", &[("striped", false), ("parity", true)]);
    let block = block_bytes.unwrap_or(512);
    let sized = |bytes: u64| bytes.is_multiple_of(block) && (512..=1 << 24).contains(&bytes);
    let chunk = fields.size("chunk", Welcome, sized, "whole blocks, up to \"16 MiB\"");
    let known = |n| LANES.contains(&n);
    let lanes = fields.number_where("lanes", Welcome, known, "1, 2, 4, 8, 16 or 32 lanes");
    let agreed = [
        ("free", Collections::Free),
        ("in turn", Collections::InTurn),
        ("together", Collections::Together),
    ];
    let collections = fields.choice("collections", &agreed);
    let has_out = fields.has("out");
    let most = devices.unwrap_or(1).saturating_sub(1);
    let out = if has_out { fields.number("out", Welcome, 0..=most) } else { None };
    let has_journal = fields.has("journal");
    let journal =
        if has_journal { fields.number("journal", Welcome, 1..=JOURNAL_MAX) } else { None };
    let costs = costs(&fields, COSTS);
    if parity == Some(true) && devices.is_some_and(|devices| devices < 3) {
        let found = devices.unwrap_or(0).to_string();
        fields.error("devices", found, "3 at least: array.layout is parity");
    }
    if has_out && parity == Some(false) {
        fields.error("out", "a member", "none: array.layout is striped, and nobody can be spared");
    }
    if has_journal && parity == Some(false) {
        fields.error("journal", "one", "none: array.layout is striped, and has no write hole");
    }
    fields.done();
    Some(Array {
        devices: devices? as u32,
        parity: parity?,
        chunk_bytes: chunk? as u32,
        lanes: lanes? as u8,
        collections: collections?,
        out: if has_out { Some(out? as u32) } else { None },
        journal: if has_journal { Some(journal? as u32) } else { None },
        costs: costs?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "{ devices = 4, layout = \"parity\", chunk = \"8 KiB\", lanes = 4, \
        collections = \"in turn\", costs = { parity = \"30 ns\" }, out = 3, journal = 16 }";

    fn open(table: &str) -> Result<Plan, String> {
        Plan::open("small-flash", &[("array", table)]).map_err(|errors| errors.to_string())
    }

    #[test]
    fn an_array_is_read_as_it_is_written() {
        let array = open(GOOD).expect("a plan").array.expect("an array");
        assert_eq!((array.devices, array.parity, array.chunk_bytes), (4, true, 8192));
        assert_eq!((array.lanes, array.collections), (4, Collections::InTurn));
        assert_eq!((array.out, array.journal), (Some(3), Some(16)));
    }

    #[test]
    fn what_makes_no_array_is_said() {
        for (with, instead, said) in [
            (
                "devices = 4",
                "devices = 2",
                "array.devices: found 2, expected 3 at least: array.layout is parity",
            ),
            (
                "devices = 4",
                "devices = 17",
                "array.devices: found 17, expected a whole number from 1 to 16",
            ),
            (
                "parity\"",
                "striped\"",
                "array.out: found a member, expected none: array.layout is striped, and \
                nobody can be spared",
            ),
            (
                "parity\"",
                "striped\"",
                "array.journal: found one, expected none: array.layout is striped, and has no \
                write hole",
            ),
            (
                "journal = 16",
                "journal = 0",
                "array.journal: found 0, expected a whole number from 1 to 1024",
            ),
            ("out = 3", "out = 4", "array.out: found 4, expected a whole number from 0 to 3"),
            (
                "8 KiB",
                "700 B",
                "array.chunk: found \"700 B\", expected whole blocks, up to \"16 MiB\"",
            ),
            (
                "in turn",
                "never",
                "array.collections: found \"never\", expected \"free\" or \"in turn\" or \
                \"together\"",
            ),
            ("lanes = 4", "lanes = 3", "array.lanes: found 3, expected 1, 2, 4, 8, 16 or 32 lanes"),
        ] {
            let errors = open(&GOOD.replacen(with, instead, 1)).expect_err(instead);
            assert!(errors.contains(said), "{errors}");
        }
    }
}
