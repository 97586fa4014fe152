//! Policy decisions, as tables and as properties.

use ftl::policy::{self, Candidate, Choice, Health, Limits, Space, Stream};
use proptest::prelude::*;
use runtime::Rng;

fn one(valid: u32, age: u64, erases: u32) -> Option<Candidate> {
    Some(Candidate { valid, units: 100, age, erases })
}

fn chosen(choice: Choice, of: &[Option<Candidate>]) -> Option<usize> {
    policy::victim(choice, of.iter().copied(), &mut Rng::new(1))
}

#[test]
fn gc_victims_by_table() {
    let some = [one(50, 10, 0), None, one(30, 1, 0), one(30, 9, 0), one(90, 1000, 0)];
    // Benefits: 10 * 50 / 50, -, 1 * 70 / 30, 9 * 70 / 30, 1000 * 10 / 90 (all halved).
    let table = [(Choice::Greedy, 2), (Choice::Oldest, 4), (Choice::CostBenefit, 4)];
    for (choice, expected) in table {
        assert_eq!(chosen(choice, &some), Some(expected), "{choice:?}");
    }
    assert_eq!(chosen(Choice::CostBenefit, &some[..4]), Some(3));
    assert_eq!(chosen(Choice::CostBenefit, &[one(1, 1000, 0), one(0, 1, 0)]), Some(1), "for free");
    let drawn = chosen(Choice::Sample(64), &some).expect("so many draws see all");
    assert_eq!(some[drawn].map(|one| one.valid), Some(30));
    for choice in [Choice::Greedy, Choice::Oldest, Choice::CostBenefit, Choice::Sample(2)] {
        assert_eq!(chosen(choice, &[]), None);
        assert_eq!(chosen(choice, &[None, one(100, 5, 0)]), None, "nothing is gained");
    }
}

#[test]
fn fresh_superblocks_by_table() {
    let free = [None, Some(4), Some(2), Some(9), Some(2), Some(9)];
    assert_eq!(policy::fresh(Stream::Host, free.into_iter()), Some(2));
    assert_eq!(policy::fresh(Stream::Collector, free.into_iter()), Some(3));
    assert_eq!(policy::fresh(Stream::Host, [None].into_iter()), None);
}

#[test]
fn wear_levelling_victims_by_table() {
    let some = [one(100, 0, 20), None, one(100, 0, 3), one(0, 0, 12)];
    assert_eq!(policy::wear_victim(16, 20, some.into_iter()), Some(2));
    assert_eq!(policy::wear_victim(17, 20, some.into_iter()), None);
    assert_eq!(policy::wear_victim(0, 20, [].into_iter()), None);
}

#[test]
fn refresh_limits_by_table() {
    let limits = Limits { corrected: 40, reads: 1000, age: 50 };
    let fine = Health { corrected: 39, reads: 999, age: 49 };
    assert!(!limits.are_passed(fine));
    assert!(limits.are_passed(Health { corrected: 40, ..fine }));
    assert!(limits.are_passed(Health { reads: 1000, ..fine }));
    assert!(limits.are_passed(Health { age: 50, ..fine }));
}

fn candidates() -> impl Strategy<Value = Vec<Option<Candidate>>> {
    let one = (0_u32..=64, 0_u64..1000, 0_u32..50).prop_map(|(valid, age, erases)| Candidate {
        valid,
        units: 64,
        age,
        erases,
    });
    prop::collection::vec(prop::option::weighted(0.8, one), 0..40)
}

proptest! {
    #[test]
    fn gc_victim_exists_iff_a_candidate_frees_space(of in candidates(), seed in any::<u64>()) {
        let any = of.iter().flatten().any(Candidate::gains);
        for choice in [Choice::Greedy, Choice::Oldest, Choice::CostBenefit, Choice::Sample(3)] {
            let found = policy::victim(choice, of.iter().copied(), &mut Rng::new(seed));
            prop_assert_eq!(found.is_some(), any);
            if let Some(at) = found {
                prop_assert!(of[at].unwrap().gains());
            }
        }
    }

    #[test]
    fn greedy_victim_has_fewest_valid_units(of in candidates()) {
        if let Some(at) = chosen(Choice::Greedy, &of) {
            let least = of.iter().flatten().map(|one| one.valid).min().unwrap();
            prop_assert_eq!(of[at].unwrap().valid, least);
        }
    }

    #[test]
    fn cost_benefit_prefers_older_of_equal_candidates(
        valid in 1_u32..64, young in 1_u64..1000, more in 1_u64..1000,
    ) {
        let of = [young, young + more].map(|age| {
            Some(Candidate { valid, units: 64, age, erases: 0 })
        });
        prop_assert_eq!(chosen(Choice::CostBenefit, &of), Some(1));
    }

    /// The collector's parallelism grows as space shrinks; it starts before the host has to wait, and not
    /// earlier than needed.
    #[test]
    fn gc_parallelism_is_monotonic_in_free_space(
        left in 0_u64..3000, hold in 1_u64..1000, over in 1_u64..1000, most in 1_u32..64,
    ) {
        let space = |left| Space { left, hold, start: hold + over };
        let gc_parallelism = space(left).gc_parallelism(most);
        prop_assert!(gc_parallelism <= most);
        prop_assert_eq!(gc_parallelism == 0, left >= hold + over);
        prop_assert!(space(left + 1).gc_parallelism(most) <= gc_parallelism);
        if left <= hold {
            prop_assert_eq!(gc_parallelism, most);
        }
        prop_assert!(space(left).admits(0) == (left >= hold));
    }
}
