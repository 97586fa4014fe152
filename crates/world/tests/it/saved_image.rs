//! An image of blocks is flushed when its state is saved, as at the stop of a server.

use std::sync::Arc;

use media::contents::{Backing, Contents, Keep, Spec};
use media::files::{Fault, Faults, Files};
use testing::{Folder, plan};
use world::device::MediumState;

/// Contents in memory in front of the file are in the file afterwards, and a failed flush is an error.
#[test]
fn saved_image_is_flushed_or_saving_fails() {
    let folder = Folder::new("saved-image");
    let path = folder.path("image");
    let faults = Arc::new(Faults::new());
    let spec = Spec {
        capacity_bytes: 1 << 20,
        block_bytes: 4096,
        keep: Keep::Everything,
        backing: Backing::Bounded { path: path.clone(), resident_bytes: 1 << 20 },
    };
    let contents = Contents::with_files(spec, &Files::failing(faults.clone()));
    let mut contents = contents.expect("an image");
    contents.write(8192, &[7; 4096]).expect("room");
    let (mut state, plan) = (MediumState::Blocks(Box::new(contents)), plan("gen4", &[]));
    let written = || std::fs::read(&path).expect("an image")[8192..12288] == [7; 4096];
    assert!(!written());
    state.save(&plan).expect("a good flush");
    assert!(written());

    faults.fail(0, u64::MAX, Fault::Error(5));
    let error = state.save(&plan).expect_err("every call fails").to_string();
    assert!(error.contains("flush failed") && error.contains("image"), "{error}");
}
