//! Load of a queue: whether commands come often enough to be polled for.
//!
//! "Making the switch to DC Express at a given load threshold while reverting to the traditional
//! doorbell mode of operation at times of low load" (Vučinić et al., "DC Express", FAST 2014, section 5).

use runtime::{Span, Time};

/// Weight of the newest gap in the mean, as a divisor.
const NEWEST: u64 = 8;

/// Gaps without a command, in thresholds, after which the load is low whatever the mean: at random
/// arrival a gap is as long once in `e^4`, 55, at a load of the threshold.
const SILENT: u64 = 4;

/// Mean time between the commands of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Mean gap; none before the second command.
    mean: Option<Span>,
    last: Option<Time>,
}

impl Load {
    /// A fetch has brought `commands` commands. A silence counts as the shortest that makes the load low:
    /// after a longer one, too, some ten commands in a row end it.
    pub fn came(&mut self, now: Time, commands: u32, gap_max: Span) {
        for nth in 0..commands {
            // Commands of one fetch came between it and the last one.
            let Some(last) = self.last else { break };
            let gap = if nth == 0 { now.since(last).min(gap_max * SILENT) } else { Span::ZERO };
            self.mean = Some(match self.mean {
                None => gap,
                Some(mean) => Span(mean.0 - mean.0 / NEWEST + gap.0 / NEWEST),
            });
        }
        self.last = Some(now);
    }

    /// True if commands come at a mean distance of more than `gap_max`, or none has come for long.
    pub fn is_low(&self, now: Time, gap_max: Span) -> bool {
        let silent = self.last.is_none_or(|last| now.since(last) > gap_max * SILENT);
        silent || self.mean.is_none_or(|mean| mean > gap_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_follows_mean_gap_of_commands() {
        let (mut load, mut now) = (Load::default(), Time::ZERO);
        let gap_max = Span::us(10);
        assert!(load.is_low(now, gap_max), "nothing has come");
        let mut come = |gap: Span, times: u32| {
            for _ in 0..times {
                now += gap;
                load.came(now, 1, gap_max);
            }
            (load.is_low(now, gap_max), load.is_low(now + Span::us(39), gap_max), load, now)
        };
        assert!(come(Span::us(50), 30).0);
        let (low, soon, load, now) = come(Span::us(5), 30);
        assert!(!low && !soon);
        assert!(load.is_low(now + Span::us(41), gap_max), "silence");
        let (low, ..) = come(Span::us(50), 8);
        assert!(low);
        // A day of silence takes no longer to end than a short one.
        come(Span::s(86_400), 1);
        let (low, ..) = come(Span::us(5), 16);
        assert!(!low, "sixteen commands at twice the load");
    }
}
