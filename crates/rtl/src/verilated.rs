//! The block as compiled by Verilator: the only file here with `unsafe`.
//!
//! The C++ object is created, used and freed by one owner through one pointer. It keeps no pointers of
//! ours, starts no threads and has no callbacks. Both structures are plain integers, valid for any bit
//! pattern, and their sizes are asserted on both sides.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::pins::{Block, Inputs, Outputs};

unsafe extern "C" {
    fn fastpath_new() -> *mut c_void;
    fn fastpath_free(block: *mut c_void);
    fn fastpath_cycle(block: *mut c_void, inputs: *const Inputs, outputs: *mut Outputs);
}

/// `rtl/fastpath_top.sv` with its default parameters.
pub struct Verilated(NonNull<c_void>);

impl Verilated {
    /// Creates a block that was never reset.
    #[allow(clippy::new_without_default, reason = "it is a machine, not a value")]
    pub fn new() -> Verilated {
        // SAFETY: the function takes no arguments; it returns an object of its own, or null.
        Verilated(
            NonNull::new(unsafe { fastpath_new() }).expect("C++ throws where there is no memory"),
        )
    }
}

impl Block for Verilated {
    fn cycle(&mut self, inputs: &Inputs) -> Outputs {
        let mut outputs = Outputs::default();
        // SAFETY: the object is ours and alive until drop, `&mut self` excludes other access, and the two
        // structures outlive the call, which keeps neither pointer.
        unsafe { fastpath_cycle(self.0.as_ptr(), inputs, &mut outputs) };
        outputs
    }
}

impl Drop for Verilated {
    fn drop(&mut self) {
        // SAFETY: the pointer came from fastpath_new and is not used after this.
        unsafe { fastpath_free(self.0.as_ptr()) };
    }
}
