//! Tests of media through the public interface, in one program. `contents_file` is separate, because it
//! starts processes.

mod common;
mod contents_faults;
mod contents_oracle;
mod contents_sparse;
mod contents_speed;
mod nand;
mod nand_speed;
