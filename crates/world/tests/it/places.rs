//! Operations of an erased disk, each in a place that an ended one left.

use std::future::pending;

use std::rc::Rc;

use world::interfaces::places::Places;

#[test]
fn operations_use_the_places_that_others_left() {
    let places = Places::default();
    let free = |number| assert_eq!(places.left(), number);
    let alive = Rc::new(());
    let begin = || {
        let alive = alive.clone();
        places.begin(async move {
            let _alive = alive;
            pending().await
        })
    };
    let (one, two) = (begin(), begin());
    free(0);
    assert_eq!(Rc::strong_count(&alive), 3);
    drop(one);
    free(1);
    assert_eq!(Rc::strong_count(&alive), 2, "a dropped operation ends at once");
    let three = begin();
    free(0);
    drop((two, three));
    free(2);
    assert_eq!(Rc::strong_count(&alive), 1);
}
