//! How much of a processor the thread of a live host takes.

use runtime::Span;

/// What the calling thread has had of a processor until now: the first number of Linux's
/// `/proc/thread-self/schedstat`, nanoseconds. None, where there is no such file.
pub(super) fn time_of_this_thread() -> Option<Span> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Span::ns)
}

/// A run on this thread, and what it took of a processor.
pub(super) fn timed<T>(run: impl FnOnce() -> T) -> (T, Option<Span>) {
    let before = time_of_this_thread();
    let done = run();
    let after = time_of_this_thread();
    (done, before.zip(after).map(|(before, after)| Span(after.0.saturating_sub(before.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_takes_next_to_nothing() {
        let sleep = || std::thread::sleep(std::time::Duration::from_millis(20));
        if let ((), Some(took)) = timed(sleep) {
            assert!(took < Span::ms(10), "{took}");
        }
    }
}
