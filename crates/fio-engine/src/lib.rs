//! External I/O engine for fio: runs fio jobs on doorbell's host interfaces.
//!
//! ```text
//! fio --name=v --ioengine=external:/path/to/libdoorbell_fio.so --filename=drive --size=16m --rw=randrw
//! ```
//!
//! Three environment variables configure it: `DOORBELL_FIO_INTERFACE` (`fastpath`, which is libfnvme, or
//! `nvme`, `dcx`, `block`), `DOORBELL_FIO_SIZE` (size of a job's single file, default 16 MiB), and libfnvme's
//! `FNVME_DEVICE`. A job has its own drive in memory, or an area of a shared one.
//!
//! ```text
//!   fio ─ ioengine calls ─► engine ─┬─ fnvme ─► FastPath engine
//!                                   └─ serve::disk ─► nvme, dcx, block
//! ```
//!
//! It is not a benchmark: fio generates the load, measures and reports.
//!
//! No source of fio is used: `abi` holds the offsets of the few structure fields that the engine uses, for
//! each version from fio 3.30 to 3.42 on 64-bit Linux. With any other version this library prints an error
//! and provides no engine. The only file with `unsafe` is `engine.rs`: fio's calls, and the fields of its
//! structures, whose offsets are asserted.

mod abi;
mod engine;
mod job;
