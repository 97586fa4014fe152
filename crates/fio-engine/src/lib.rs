//! An external I/O engine for fio: doorbell's interfaces under the workload generator that everybody has.
//!
//! ```text
//! fio --name=v --ioengine=external:/path/to/libdoorbell_fio.so --filename=drive --size=16m --rw=randrw
//! ```
//!
//! What is asked for goes by three variables: `DOORBELL_FIO_INTERFACE` (`fastpath`, which is libfnvme, or
//! `nvme`, `dcx`, `block`), `DOORBELL_FIO_SIZE` (bytes of the one file that a job has, 16 MiB unless said),
//! and libfnvme's `FNVME_DEVICE`. A job has a drive in memory of its own, or an area of a shared one.
//!
//! No source of fio is used: `abi` says where the few words of its structures lie that are touched, for
//! each version from fio 3.30 to 3.42 on 64-bit Linux. To another fio this library says so, and gives it no
//! engine.

mod abi;
mod engine;
mod job;
