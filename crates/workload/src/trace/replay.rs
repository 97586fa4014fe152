//! The second pass: a trace's operations mapped onto one device, at the recorded or another speed.

use std::io::BufRead;

use runtime::Span;

use super::{Map, Reader, TraceError};
use crate::job::TraceSource;
use crate::pattern::Op;

/// The operations of a recording, in order. An [`Iterator`]; it ends after the first error.
#[derive(Debug)]
pub struct Replay<R> {
    file: String,
    reader: Reader<R>,
    map: Map,
    /// Speed in percent, or `None` for as fast as possible.
    speed_percent: Option<u32>,
    ended: bool,
}

impl<R: BufRead> Replay<R> {
    /// Replays `reader`, named `file` in errors, with the settings of `source`.
    pub fn new(file: &str, reader: Reader<R>, map: Map, source: &TraceSource) -> Replay<R> {
        let speed_percent = (!source.no_stall).then_some(source.time_scale_percent.max(1));
        Replay { file: file.to_owned(), reader, map, speed_percent, ended: false }
    }
}

impl<R: BufRead> Iterator for Replay<R> {
    type Item = Result<Op, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let op = match self.reader.next()? {
                Ok(op) => op,
                Err(error) => return Some(Err(error)),
            };
            let due = self.speed_percent.map(|percent| {
                let ps = u128::from(op.at.0) * 100 / u128::from(percent);
                Span(u64::try_from(ps).unwrap_or(u64::MAX))
            });
            match self.map.op(&op, due) {
                Ok(Some(op)) => return Some(Ok(op)),
                Ok(None) => {}
                Err(wrong) => {
                    self.ended = true;
                    let (file, line) = (self.file.clone(), self.reader.line());
                    return Some(Err(TraceError { file, line, wrong }));
                }
            }
        }
        None
    }
}
