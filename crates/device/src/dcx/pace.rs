//! Fetch timing: anticipation, as a pure function of the device's observations.
//!
//! A fetch reads host memory some time after its request has left, so a command stored just after that moment
//! waits for a whole further fetch. "Since we can probe the actual round-trip latency for one DMA request, we
//! can send anticipatory queue read requests prior to sending all data packets for a previous request so that
//! the next commands, if available, arrive at the device just in time" (Vučinić et al., "DC Express", FAST
//! 2014, section 2).
//!
//! Learned values:
//! - the round trip of a fetch;
//! - the time for a command's data to leave, by length;
//! - at depth 1, the *lead*: the time from the end of the last data to the fetch that just finds the next
//!   command. A fetch that finds it moves the lead slightly earlier; one that does not moves it later by
//!   more. The lead settles where about one fetch in thirty is too early;
//! - at higher depth, the fetch leaves so that its commands arrive when the data in progress have left.

use runtime::{Span, Time};

/// Below this round trip, timing is not worthwhile: the next fetch is as good.
const DIRECT_BELOW: Span = Span::ns(200);
/// Consecutive finds, with no other command in flight, after which depth 1 is assumed.
const ALONE_MIN: u32 = 8;
/// Steps of the lead as divisors of the round trip: earlier after a find, later after a miss.
const EARLIER: i64 = 512;
const LATER: i64 = 16;
/// Maximum lead after the end of the data, in round trips.
const LEAD_MAX: i64 = 8;

/// Time of the next fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Immediately.
    Now,
    /// At this time.
    At(Time),
    /// When the data transfer allows it: see [`Pace::begin_data`].
    WithData,
}

/// Learned values and state of the commands in flight.
#[derive(Clone, Debug)]
pub struct Pace {
    anticipate: bool,
    /// Entries of the next fetch.
    width: u32,
    round_trip: Option<Span>,
    /// Time from the end of data to the next fetch, ps. Negative: the fetch leaves before their end.
    lead: i64,
    /// Last transfer: bytes, and duration in ps.
    pace: Option<(u32, u64)>,
    /// Minimum time from a command's arrival to the beginning of its data.
    service: Option<Span>,
    /// Consecutive finds of a single command.
    alone: u32,
    /// Commands that arrived and whose data have not all left.
    under_way: u32,
    /// Commands among these whose data have not begun.
    waiting: u32,
    /// Commands among these that wait for nothing but the link.
    queued: u32,
    arrived: Time,
    data: Option<Data>,
    /// End of the last data.
    ended: Time,
    /// Time of the fetch that is meant to find the command after the last data.
    aimed: Option<Time>,
    /// The lead has been adjusted for that command.
    learned: bool,
}

#[derive(Clone, Copy, Debug)]
struct Data {
    begun: Time,
    bytes: u32,
}

impl Pace {
    /// Initial state, nothing learned. Without anticipation, each fetch follows the previous one immediately.
    pub fn new(anticipate: bool) -> Pace {
        Pace {
            anticipate,
            width: 1,
            round_trip: None,
            lead: 0,
            pace: None,
            service: None,
            alone: 0,
            under_way: 0,
            waiting: 0,
            queued: 0,
            arrived: Time::ZERO,
            data: None,
            ended: Time::ZERO,
            aimed: None,
            learned: true,
        }
    }

    /// Returns true if fetches are timed.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.anticipate && self.round_trip.is_none_or(|span| span >= DIRECT_BELOW)
    }

    fn is_single(&self) -> bool {
        self.alone >= ALONE_MIN
    }

    /// Target time of the next fetch: end of the last data plus lead.
    fn aim(&self) -> Time {
        Time(self.ended.0.saturating_add_signed(self.lead))
    }

    /// Entries of the next fetch: starts at one and doubles after each full fetch. More entries than commands
    /// would delay these commands, because they wait for the rest.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Adapts the width after a fetch of `asked` entries that returned `found`.
    pub fn filled(&mut self, asked: u32, found: u32) {
        self.width = if found == asked { 2 * asked } else { found.max(1) };
    }

    /// Time of the next fetch, when no fetch is in flight.
    pub fn next(&self, now: Time) -> Next {
        let Some(round_trip) = self.round_trip.filter(|_| self.is_timed()) else {
            return Next::Now;
        };
        // Between two transfers that follow one another a fetch would leave ahead of the second, before
        // the host has seen the first and stored the next command: it leaves among the data of the second.
        if (self.data.is_some() || self.queued > 0) && self.pace.is_some() {
            return Next::WithData;
        }
        if !self.is_single() {
            return Next::Now;
        }
        if self.waiting > 0 {
            // Depth 1: the next command comes after this one's data.
            return Next::WithData;
        }
        let aim = self.aim();
        let before = self.aimed.is_none() && now < aim && aim < now + round_trip;
        if before { Next::At(aim) } else { Next::Now }
    }

    /// A fetch leaves.
    pub fn asked(&mut self, now: Time) {
        let after = self.under_way == 0 && self.aimed.is_none() && now >= self.aim();
        if self.data.is_some() || after {
            self.aimed = Some(now);
        }
    }

    /// The fetch that left at `asked` has returned `commands` commands.
    pub fn fetched(&mut self, asked: Time, now: Time, commands: u32) {
        let trip = now.since(asked);
        self.round_trip = Some(self.round_trip.map_or(trip, |least| least.min(trip)));
        if commands == 0 {
            return;
        }
        let came_alone = commands == 1 && self.under_way == 0;
        if came_alone {
            self.alone = self.alone.saturating_add(1);
            self.learn(asked);
        } else {
            self.alone = 0;
        }
        self.under_way += commands;
        self.waiting += commands;
        self.arrived = now;
    }

    /// Adjusts the lead, given the time of the fetch that found the command after the last data.
    fn learn(&mut self, asked: Time) {
        let Some(round_trip) = self.round_trip.filter(|_| !self.learned) else { return };
        self.learned = true;
        let step = round_trip.0 as i64;
        let found = asked.0 as i64 - self.ended.0 as i64;
        self.lead = match self.aimed {
            Some(aimed) if aimed == asked => self.lead - step / EARLIER,
            Some(_) => self.lead + step / LATER,
            None => found,
        };
        self.lead = self.lead.clamp(-step, LEAD_MAX * step);
    }

    /// A command's data wait for the link, which other data occupy.
    pub fn queue_data(&mut self) {
        self.queued += 1;
    }

    /// A command's data no longer wait for the link.
    pub fn unqueue_data(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    /// The data of a command (`bytes` bytes) begin to leave. If the next fetch must leave among them, returns
    /// the number of bytes ahead of it. `idle`: no fetch is in flight.
    pub fn begin_data(&mut self, now: Time, bytes: u32, idle: bool) -> Option<u32> {
        self.waiting = self.waiting.saturating_sub(1);
        if !self.is_timed() {
            return None;
        }
        self.service = Some(match self.service {
            Some(least) => least.min(now.since(self.arrived)),
            None => now.since(self.arrived),
        });
        self.data = Some(Data { begun: now, bytes });
        (self.aimed, self.learned) = (None, false);
        let (round_trip, (of, ps)) = self.round_trip.zip(self.pace).filter(|_| idle)?;
        let whole = (u128::from(bytes) * u128::from(ps) / u128::from(of.max(1))) as u64;
        let lead = match self.is_single() && self.under_way == 1 {
            true => self.lead,
            false => -((round_trip + self.service.unwrap_or(Span::ZERO)).0 as i64),
        };
        let until = (whole as i64).saturating_add(lead);
        if until >= whole as i64 || self.waiting > 0 && self.is_single() {
            return None;
        }
        let share = u128::from(bytes) * until.max(0) as u128 / u128::from(whole.max(1));
        Some(share as u32)
    }

    /// All data of the command have left.
    pub fn end_data(&mut self, now: Time) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(data) = self.data.take() {
            self.pace = Some((data.bytes, now.since(data.begun).0.max(1)));
        }
        self.ended = now;
    }

    /// A command ended without data, or (`begun`) before all its data had left.
    pub fn drop_command(&mut self, now: Time, begun: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        if begun {
            self.data = None;
        } else {
            self.waiting = self.waiting.saturating_sub(1);
        }
        self.ended = now;
        (self.aimed, self.learned) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a host that stores its next command `turn` ps after the last data, and a link whose fetches
    /// read host memory `sight` ps after they leave. Returns the delay until each command is found, ps.
    fn waits(turn: i64, sight: i64, trip: i64, data: i64, rounds: u32) -> Vec<i64> {
        let mut pace = Pace::new(true);
        let (mut now, mut stored) = (0i64, 0i64);
        let mut waits = Vec::new();
        let time = |t: i64| Time(t.max(0) as u64);
        while waits.len() < rounds as usize {
            let asked = match pace.next(time(now)) {
                Next::Now => now,
                Next::At(at) => at.0 as i64,
                Next::WithData => unreachable!("no data are under way"),
            };
            pace.asked(time(asked));
            let found = asked + sight >= stored;
            now = asked + trip;
            pace.fetched(time(asked), time(now), u32::from(found));
            if !found {
                continue;
            }
            waits.push(asked + sight - stored);
            // The command is found; its data leave, possibly with the next fetch among them.
            let mut found = true;
            while found {
                let split = pace.begin_data(time(now), 512, true);
                let begun = now;
                now += data;
                stored = now + turn;
                let asked = split.map(|bytes| begun + data * i64::from(bytes) / 512);
                asked.inspect(|asked| pace.asked(time(*asked)));
                pace.end_data(time(now));
                let Some(asked) = asked else { break };
                found = asked + sight >= stored;
                now = now.max(asked + trip);
                pace.fetched(time(asked), time(now), u32::from(found));
                if found {
                    waits.push(asked + sight - stored);
                }
            }
        }
        waits
    }

    #[test]
    fn lead_converges_for_steady_host() {
        for turn in [250_000, 400_000, 900_000] {
            let waits = waits(turn, 412_000, 604_000, 304_000, 2000);
            let late = &waits[1000..];
            let mean = late.iter().sum::<i64>() / late.len() as i64;
            assert!(mean < 60_000, "after {turn} ps: found {mean} ps late on average");
        }
    }

    /// The next data wait for the end of those under way: between the two no fetch leaves, and the one
    /// among the second leaves in time for its command.
    #[test]
    fn fetch_waits_for_queued_data() {
        let mut pace = Pace::new(true);
        pace.asked(Time(0));
        pace.fetched(Time(0), Time(600_000), 2);
        assert_eq!(pace.begin_data(Time(1_000_000), 4096, true), None, "nothing is known yet");
        pace.queue_data();
        pace.end_data(Time(3_400_000));
        assert_eq!(pace.next(Time(3_400_000)), Next::WithData);
        pace.unqueue_data();
        let ahead =
            pace.begin_data(Time(3_400_000), 4096, true).expect("the fetch leaves among them");
        // A round trip of 600 ns and a service of 400 before the end of 2,400.
        assert_eq!(ahead, 4096 * 14 / 24);
        pace.end_data(Time(5_800_000));
        assert_eq!(pace.next(Time(5_800_000)), Next::Now);
    }

    #[test]
    fn fetches_are_back_to_back_without_anticipation() {
        let mut pace = Pace::new(false);
        pace.asked(Time(0));
        pace.fetched(Time(0), Time(600_000), 1);
        assert_eq!(pace.begin_data(Time(700_000), 512, true), None);
        assert_eq!(pace.next(Time(700_000)), Next::Now);
    }

    #[test]
    fn short_round_trip_is_not_timed() {
        let mut pace = Pace::new(true);
        pace.fetched(Time(0), Time(20_000), 1);
        assert!(!pace.is_timed());
    }
}
