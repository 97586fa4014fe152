//! The block as Verilator compiled it: the only file here with `unsafe`.
//!
//! The C++ object is made, used and freed by one owner through one pointer; it keeps none of ours,
//! starts no threads, and calls nothing back. Both structures are plain numbers, of which any bits
//! make sense, and their sizes are asserted on both sides.
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
    /// One that was never reset.
    #[allow(clippy::new_without_default, reason = "it is a machine, not a value")]
    pub fn new() -> Verilated {
        // SAFETY: it takes nothing; what it gives is an object of its own, or nothing.
        Verilated(
            NonNull::new(unsafe { fastpath_new() }).expect("C++ throws where there is no memory"),
        )
    }
}

impl Block for Verilated {
    fn cycle(&mut self, inputs: &Inputs) -> Outputs {
        let mut outputs = Outputs::default();
        // SAFETY: the object is ours and alive until drop, `&mut self` keeps everybody else out,
        // and the two structures outlive the call, which keeps neither pointer.
        unsafe { fastpath_cycle(self.0.as_ptr(), inputs, &mut outputs) };
        outputs
    }
}

impl Drop for Verilated {
    fn drop(&mut self) {
        // SAFETY: it came from fastpath_new, and nobody uses it after this.
        unsafe { fastpath_free(self.0.as_ptr()) };
    }
}
