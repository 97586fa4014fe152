//! Writer of iolog version 3, which fio 3.31 and later and [`super::Reader`] replay.

use std::io::{self, Write};

use runtime::Span;

use super::iolog::HEADER_V3;
use super::{TraceKind, TraceWrong};
use crate::limits::IOLOG_NAME_BYTES_MAX;

/// Writes operations as they are submitted. Times are microseconds, rounded down.
#[derive(Debug)]
pub struct Writer<W: Write> {
    output: W,
    names: Vec<String>,
}

impl<W: Write> Writer<W> {
    /// Writes the header and opens the files. [`Writer::record`] refers to a file by its index in `names`.
    ///
    /// # Errors
    /// If a name is empty, too long or has blanks, which the format cannot represent, or the output fails.
    pub fn new(mut output: W, names: &[&str]) -> Result<Writer<W>, TraceWrong> {
        writeln!(output, "{HEADER_V3}")?;
        for name in names {
            let carried = !name.is_empty()
                && name.len() <= IOLOG_NAME_BYTES_MAX
                && !name.contains(char::is_whitespace);
            if !carried {
                return Err(TraceWrong::Name { name: (*name).to_owned() });
            }
            writeln!(output, "0 {name} add")?;
            writeln!(output, "0 {name} open")?;
        }
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Ok(Writer { output, names })
    }

    /// Writes one operation, `at` after the run's beginning.
    ///
    /// # Errors
    /// If the output fails.
    ///
    /// # Panics
    /// If there is no file `file`.
    pub fn record(
        &mut self,
        at: Span,
        file: usize,
        kind: TraceKind,
        offset_bytes: u64,
        bytes: u32,
    ) -> io::Result<()> {
        let (name, us) = (&self.names[file], at.as_ns() / 1_000);
        let action = match kind {
            TraceKind::Read => "read",
            TraceKind::Write => "write",
            TraceKind::Flush => "sync",
            TraceKind::Trim => "trim",
        };
        writeln!(self.output, "{us} {name} {action} {offset_bytes} {bytes}")
    }

    /// Closes the files, flushes the output and returns it.
    ///
    /// # Errors
    /// If the output fails.
    pub fn finish(mut self, at: Span) -> io::Result<W> {
        for name in &self.names {
            writeln!(self.output, "{} {name} close", at.as_ns() / 1_000)?;
        }
        self.output.flush()?;
        Ok(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reader, TraceOp};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn iolog_writer_rejects_blank_empty_or_long_file_names() {
        for name in ["", "a b", "a\nb", &"x".repeat(257)] {
            assert!(matches!(Writer::new(Vec::new(), &[name]), Err(TraceWrong::Name { .. })));
        }
    }

    #[test]
    fn iolog_writer_output_matches_fio() {
        let mut writer = Writer::new(Vec::new(), &["/dev/a"]).unwrap();
        writer.record(Span::ns(97_999), 0, TraceKind::Read, 249_856, 4096).unwrap();
        writer.record(Span::us(120), 0, TraceKind::Flush, 0, 0).unwrap();
        let text = String::from_utf8(writer.finish(Span::us(150)).unwrap()).unwrap();
        assert_eq!(
            text,
            "fio version 3 iolog\n0 /dev/a add\n0 /dev/a open\n97 /dev/a read 249856 4096\n\
             120 /dev/a sync 0 0\n150 /dev/a close\n"
        );
    }

    proptest! {
        #[test]
        fn iolog_writer_output_is_read_back(
            mut ops in prop::collection::vec(
                (0_u64..1 << 40, 0_u32..3, 0_u64..1 << 50, 1_u32..1 << 30, 0_usize..4),
                1..50,
            ),
        ) {
            ops.sort_unstable();
            let names = ["/a", "/b", "/c"];
            let kinds = [TraceKind::Read, TraceKind::Write, TraceKind::Flush, TraceKind::Trim];
            let first = Span::us(ops[0].0);
            let mut writer = Writer::new(Vec::new(), &names).unwrap();
            let mut want = Vec::new();
            for &(us, device, offset, bytes, kind) in &ops {
                let at = Span::us(us);
                let flush = kinds[kind] == TraceKind::Flush;
                let (offset_bytes, bytes) = if flush { (0, 0) } else { (offset, bytes) };
                writer.record(at, device as usize, kinds[kind], offset_bytes, bytes).unwrap();
                want.push(TraceOp {
                    at: at - first,
                    kind: kinds[kind],
                    offset_bytes,
                    bytes,
                    durability: Default::default(),
                    device,
                });
            }
            let file = writer.finish(Span::s(2_000_000)).unwrap();
            let read: Result<Vec<_>, _> = Reader::new("t", &file[..]).unwrap().collect();
            prop_assert_eq!(read.unwrap(), want);
        }
    }
}
