//! Model of device-chosen tags: does a read in flight ever meet its tag?
//!
//! Mirrors `Tagged` (crates/device/src/dcx/tagged.rs): `begin_read`, `choose`, `write_tagged` with its
//! `claim` and `clear_of_tags`, and `Front::read` around them. A step is the code between two awaits. Words
//! are few, and each is an interval of its own, so that tags and contents meet often. Any absent word may
//! become the tag.

use crate::search::{Model, search};

/// Number of words that a block may end with; tags are the same words.
const WORDS: u8 = 3;
const BLOCKS: usize = 2;
/// Tags chosen in one run at most, so that the search ends.
const VERSIONS_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct InUse {
    tag: u8,
    /// Zero if there is no tag.
    version: u8,
    readers: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reader {
    Idle,
    /// The host has read the notice and marked its buffer.
    Marked {
        block: u8,
        tag: u8,
        version: u8,
    },
    /// The device has taken it.
    Begun {
        block: u8,
        tag: u8,
        version: u8,
    },
    Done,
    /// Its data ended with its tag.
    Met,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Writer {
    Idle {
        block: u8,
        word: u8,
    },
    /// Has claimed the block; its word is counted.
    Counted {
        block: u8,
        word: u8,
    },
    /// Its data contain no tag in use.
    Clear {
        block: u8,
        word: u8,
    },
    /// Has read the old word.
    Ready {
        block: u8,
        word: u8,
        old: u8,
    },
    /// The medium has the new data.
    Written {
        block: u8,
        old: u8,
    },
    Done,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    contents: [u8; BLOCKS],
    counts: [i8; WORDS as usize],
    /// Oldest first; the last is the newest.
    tags: Vec<InUse>,
    versions: u8,
    readers: [Reader; 2],
    writers: [Writer; 2],
}

#[derive(Clone, Copy)]
struct Tags {
    /// `clear_of_tags` checks older tags that have readers.
    older: bool,
    /// `begin_read` refuses a version that is not the newest.
    newest_only: bool,
    /// Writes of one block are serialized.
    claim: bool,
    /// A word is counted before its data are scanned, not after.
    count_first: bool,
}

const BUILT: Tags = Tags { older: true, newest_only: true, claim: true, count_first: true };

impl State {
    fn newest(&self) -> InUse {
        *self.tags.last().expect("there is always one, if only none")
    }

    /// `Tagged::choose`, with each possible word.
    fn choose(&self, then: &mut dyn FnMut(State)) {
        let mut next = self.clone();
        next.versions += 1;
        next.tags.retain(|tag| tag.readers > 0);
        let absent: Vec<u8> =
            (0..WORDS).filter(|word| self.counts[usize::from(*word)] == 0).collect();
        let chosen: Vec<InUse> = match absent.is_empty() {
            true => vec![InUse { tag: 0, version: 0, readers: 0 }],
            false => {
                let of = |tag| InUse { tag, version: next.versions, readers: 0 };
                absent.into_iter().map(of).collect()
            }
        };
        for tag in chosen {
            let mut next = next.clone();
            next.tags.push(tag);
            then(next);
        }
    }

    /// `Reader`'s drop.
    fn part(&mut self, version: u8) {
        let newest = self.newest().version;
        if let Some(tag) = self.tags.iter_mut().find(|tag| tag.version == version) {
            tag.readers -= 1;
        }
        self.tags.retain(|tag| tag.readers > 0 || tag.version == newest);
    }
}

impl Tags {
    fn reader(&self, s: &State, at: usize, then: &mut dyn FnMut(&'static str, State)) {
        let mut next = s.clone();
        let is = |next: &mut State, reader| next.readers[at] = reader;
        match s.readers[at] {
            Reader::Idle => {
                let InUse { tag, version, .. } = s.newest();
                if version != 0 {
                    for block in 0..BLOCKS as u8 {
                        let mut next = s.clone();
                        is(&mut next, Reader::Marked { block, tag, version });
                        then("host marks", next);
                    }
                }
            }
            Reader::Marked { block, tag, version } => {
                let newest = s.newest();
                let taken = match self.newest_only {
                    true => newest.version == version,
                    false => true,
                };
                let place = next.tags.iter_mut().rev().find(|tag| tag.version == version);
                match place.filter(|_| taken) {
                    Some(place) => {
                        place.readers += 1;
                        is(&mut next, Reader::Begun { block, tag, version });
                    }
                    None if taken => is(&mut next, Reader::Begun { block, tag, version }),
                    // Reported as stale: the host marks its buffer again.
                    None => is(&mut next, Reader::Idle),
                }
                then("device begins a read", next);
            }
            Reader::Begun { block, tag, version } => {
                let met = s.contents[usize::from(block)] == tag;
                next.part(version);
                is(&mut next, if met { Reader::Met } else { Reader::Done });
                then("the data leave", next);
            }
            Reader::Done | Reader::Met => {}
        }
    }

    fn writer(&self, s: &State, at: usize, then: &mut dyn FnMut(&'static str, State)) {
        let mut next = s.clone();
        let is = |next: &mut State, writer| next.writers[at] = writer;
        match s.writers[at] {
            Writer::Idle { block, word } => {
                let taken = s.writers.iter().any(|writer| match writer {
                    Writer::Counted { block: other, .. }
                    | Writer::Clear { block: other, .. }
                    | Writer::Ready { block: other, .. }
                    | Writer::Written { block: other, .. } => *other == block,
                    Writer::Idle { .. } | Writer::Done => false,
                });
                if !taken || !self.claim {
                    next.counts[usize::from(word)] += i8::from(self.count_first);
                    is(&mut next, Writer::Counted { block, word });
                    then("a write is counted", next);
                }
            }
            Writer::Counted { block, word } => self.clear(s, at, block, word, then),
            Writer::Clear { block, word } => {
                let old = s.contents[usize::from(block)];
                next.counts[usize::from(word)] += i8::from(!self.count_first);
                is(&mut next, Writer::Ready { block, word, old });
                then("the old word is read", next);
            }
            Writer::Ready { block, word, old } => {
                next.contents[usize::from(block)] = word;
                is(&mut next, Writer::Written { block, old });
                then("the medium is written", next);
            }
            Writer::Written { old, .. } => {
                next.counts[usize::from(old)] -= 1;
                is(&mut next, Writer::Done);
                then("the old word is taken off", next);
            }
            Writer::Done => {}
        }
    }

    /// One iteration of `clear_of_tags`.
    fn clear(
        &self,
        s: &State,
        at: usize,
        block: u8,
        word: u8,
        then: &mut dyn FnMut(&'static str, State),
    ) {
        let newest = s.newest();
        let meets = |tag: &InUse| tag.version != 0 && tag.tag == word;
        let looked_at = match self.older {
            true => &s.tags[..],
            false => &s.tags[s.tags.len() - 1..],
        };
        if !looked_at.iter().any(meets) {
            let mut next = s.clone();
            next.writers[at] = Writer::Clear { block, word };
            then("a write is clear of tags", next);
        } else if meets(&newest) && s.versions < VERSIONS_MAX {
            s.choose(&mut |next| then("another tag is chosen", next));
        }
    }
}

impl Model for Tags {
    type State = State;

    /// All contents, pairs of writes and first tags.
    fn start(&self) -> Vec<State> {
        let mut starts = Vec::new();
        for code in 0..u16::from(WORDS).pow(4) * 4 {
            let digit = |place: u32| (code / u16::from(WORDS).pow(place) % u16::from(WORDS)) as u8;
            let contents = [digit(0), digit(1)];
            let writer = |block, word| Writer::Idle { block, word };
            let blocks = (code / u16::from(WORDS).pow(4)) as u8;
            let mut counts = [0; WORDS as usize];
            contents.iter().for_each(|word| counts[usize::from(*word)] += 1);
            let none = State {
                contents,
                counts,
                tags: Vec::new(),
                versions: 0,
                readers: [Reader::Idle; 2],
                writers: [writer(blocks & 1, digit(2)), writer(blocks >> 1, digit(3))],
            };
            // The two writers are interchangeable.
            if none.writers.is_sorted() {
                none.choose(&mut |start| starts.push(start));
            }
        }
        starts
    }

    fn steps(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        // They stay interchangeable later on.
        let mut sorted = |name, mut next: State| {
            next.readers.sort();
            next.writers.sort();
            then(name, next);
        };
        for at in 0..2 {
            self.reader(s, at, &mut sorted);
            self.writer(s, at, &mut sorted);
        }
    }

    fn wrong(&self, s: &State, last: bool) -> Option<String> {
        let met = s.readers.contains(&Reader::Met).then_some("a read has met its tag");
        let below = s.counts.iter().any(|count| *count < 0).then_some("a count is below zero");
        // A write waits for readers, and readers wait for nothing.
        let stuck = last && s.versions < VERSIONS_MAX && s.writers != [Writer::Done; 2];
        met.or(below).or(stuck.then_some("a write waits for ever")).map(String::from)
    }
}

#[test]
fn model_tags_no_read_meets_its_tag() {
    let states = search(&BUILT).unwrap_or_else(|way| panic!("{way}"));
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn model_tags_read_meets_tag_without_each_rule() {
    let broken = [
        Tags { older: false, ..BUILT },
        Tags { newest_only: false, ..BUILT },
        Tags { claim: false, ..BUILT },
        Tags { count_first: false, ..BUILT },
    ];
    for model in broken {
        search(&model).expect_err("a read that meets its tag");
    }
}
