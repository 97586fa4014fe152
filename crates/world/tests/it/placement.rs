//! Placements of the flash software by name.

use world::interfaces::{PLACEMENTS, named};

#[test]
fn every_placement_parses_to_its_interface() {
    for (placement, row) in PLACEMENTS {
        assert_eq!(named(&placement.to_string()).map(|row| row.name), Ok(row.name));
    }
    assert_eq!(named("map=host").map(|row| row.name), Ok("host-map"));
    assert_eq!(named("collector=host, wear=device").map(|row| row.name), Ok("host-gc"));
}

#[test]
fn placement_without_interface_is_rejected_with_the_table() {
    for wrong in ["buffer=host", "map=moon", "mop=host", "map", "map=host,"] {
        let error = named(wrong).err().expect("no such placement").to_string();
        assert!(error.contains(wrong) && error.contains("host-map"), "{error}");
    }
}
