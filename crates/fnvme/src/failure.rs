//! Errors of the C API: codes, and the text of this thread's last error.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int, c_longlong};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine::{Error, Refusal, Status};

use crate::OpenError;

/// Codes 1 to 10 are those of [`Refusal`]. This one: the handle is invalid or was freed.
pub const FP_E_HANDLE: c_int = 100;
/// Invalid argument.
pub const FP_E_ARGUMENT: c_int = 101;
/// No area, handle or memory is left.
pub const FP_E_SPACE: c_int = 102;
/// The engine has ended.
pub const FP_E_GONE: c_int = 103;
/// Unknown device name.
pub const FP_E_DEVICE: c_int = 104;
/// No server answers at the device's socket.
pub const FP_E_SOCKET: c_int = 105;
/// The drive or its engine does not start.
pub const FP_E_START: c_int = 106;
/// A device is attached, or has areas that must be freed first.
pub const FP_E_BUSY: c_int = 107;
/// No area has this name.
pub const FP_E_NAME: c_int = 108;
/// Base of NVMe errors: the NVMe status field is added.
pub const FP_E_NVME: c_int = 0x10000;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
    /// Text of the last error, if it is more specific than its code.
    static WHY: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Error of a call, as a C error code.
pub(crate) struct Failure(pub c_int);

impl Failure {
    /// An error with a text more specific than its code.
    pub fn because(code: c_int, why: impl Into<String>) -> Failure {
        WHY.set(Some(why.into()));
        Failure(code)
    }

    pub fn argument(why: impl Into<String>) -> Failure {
        Failure::because(FP_E_ARGUMENT, why)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let code = match error {
            OpenError::Word(_) => FP_E_DEVICE,
            OpenError::Socket(_) => FP_E_SOCKET,
            OpenError::Start(_) => FP_E_START,
        };
        Failure::because(code, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(match error {
            Error::Answer(Status::Engine(refusal)) => refusal as c_int,
            Error::Answer(Status::Nvme(status)) => FP_E_NVME + c_int::from(status.bits()),
            Error::Answer(_) | Error::Gone => FP_E_GONE,
            Error::Length(_) => Refusal::Size as c_int,
            Error::Elsewhere | Error::Name | Error::OtherLength { .. } => {
                return Failure::argument(error.to_string());
            }
            Error::InUse => return Failure::because(FP_E_BUSY, error.to_string()),
            Error::Names => return Failure::because(FP_E_SPACE, error.to_string()),
            Error::NotFound => FP_E_NAME,
            Error::Unreachable => FP_E_SOCKET,
            _ => FP_E_SPACE,
        })
    }
}

/// Runs the body of a C call. Returns zero, or minus the error code, which [`fastpath_error`] then returns
/// too. No panic unwinds into C.
pub(crate) fn answer(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    WHY.take();
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Failure(code))) => code,
        Err(_) => FP_E_GONE,
    };
    LAST.set(code);
    -code
}

/// Same for a call that returns a number.
pub(crate) fn number(body: impl FnOnce() -> Result<u64, Failure>) -> c_longlong {
    let mut found = 0;
    let error = answer(|| {
        found = c_longlong::try_from(body()?).unwrap_or(c_longlong::MAX);
        Ok(())
    });
    if error == 0 { found } else { c_longlong::from(error) }
}

/// Error code of this thread's last call, or zero.
pub(crate) fn last() -> c_int {
    LAST.get()
}

/// Text of an error, valid until this thread's next call of this function.
pub(crate) fn in_words(error: c_int) -> *const c_char {
    let code = error.checked_abs().unwrap_or(0);
    let why = WHY.with_borrow(|why| why.clone().filter(|_| code != 0 && code == LAST.get()));
    let text = match code {
        _ if why.is_some() => why.unwrap_or_default(),
        FP_E_HANDLE => "no such fastpath: it was never made here, or was freed".to_owned(),
        FP_E_ARGUMENT => "an argument that makes no sense".to_owned(),
        FP_E_SPACE => "no area, handle or memory of this length is left".to_owned(),
        FP_E_GONE => "the engine has ended".to_owned(),
        FP_E_DEVICE => "there is no device by this word".to_owned(),
        FP_E_SOCKET => "no server answers at the device's socket".to_owned(),
        FP_E_START => "the drive or its engine does not start".to_owned(),
        FP_E_BUSY => "there is a device, or it has areas, to be let go before".to_owned(),
        FP_E_NAME => "no area of the drive has this name".to_owned(),
        code if code >= FP_E_NVME => Status::from_bits((code - FP_E_NVME) as u16).to_string(),
        0 => "good".to_owned(),
        code => Status::from_bits(0x8000 | code as u16).to_string(),
    };
    let text = CString::new(text).unwrap_or_default();
    TEXT.with_borrow_mut(|kept| {
        *kept = text;
        kept.as_ptr()
    })
}
