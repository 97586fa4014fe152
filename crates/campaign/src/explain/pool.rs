//! Simulations on all cores. Each is single-threaded and deterministic, so the results do not depend on the
//! thread that runs it, or when.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of `work` for each item, in the order of the items, computed by `threads` threads.
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let take = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            *results[at].lock().expect("no thread panics with the lock") = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(take);
        }
    });
    let done = results.into_iter().map(|result| result.into_inner().expect("as above"));
    done.map(|result| result.expect("every item is taken once")).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_are_in_the_order_of_the_items_for_any_number_of_threads() {
        let items: Vec<u64> = (0..100).collect();
        let want: Vec<u64> = items.iter().map(|n| n * n).collect();
        for threads in [1, 2, 7, 200] {
            assert_eq!(map(&items, threads, |n| n * n), want, "{threads}");
        }
        assert_eq!(map(&[], 2, |n: &u64| *n), Vec::<u64>::new());
    }
}
