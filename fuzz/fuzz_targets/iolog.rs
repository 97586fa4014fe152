//! An iolog of arbitrary bytes: operations in order of time, or an error with its line; and the two passes
//! over it agree.
use workload::pattern::Target;
use workload::trace::{Extents, Map, Mapping, Reader};

pub fn run(data: &[u8]) {
    let (mapping, data) = match data.split_first() {
        Some((first, rest)) => (first % 2, rest),
        None => return,
    };
    let target = Target { capacity_bytes: 1 << 30, block_bytes: 512 };
    let Ok(mut reader) = Reader::new("fuzz.iolog", data) else { return };
    let extents = match Extents::scan(&mut reader, target) {
        Ok(extents) => extents,
        Err(error) => {
            assert!(error.to_string().starts_with("fuzz.iolog"));
            return;
        }
    };
    let mapping = match mapping {
        0 => Mapping::Concatenate,
        _ => Mapping::Modulo,
    };
    let Ok(map) = Map::new(&extents, mapping, target) else { return };
    let mut before = None;
    for op in Reader::new("fuzz.iolog", data).expect("it was read before") {
        let op = op.expect("it was read before");
        assert!(before.is_none_or(|at| op.at >= at), "time runs backwards");
        before = Some(op.at);
        if let Ok(Some(op)) = map.op(&op, None) {
            assert!(op.offset_bytes + u64::from(op.bytes) <= target.capacity_bytes, "{op:?}");
        }
    }
}
