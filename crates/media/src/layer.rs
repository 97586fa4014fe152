//! Media on top of other media: a [`Layer`] lists the methods that it changes, an [`either!`](crate::either)
//! none.

use core::future::Future;

use crate::Media;

/// Passes every method of [`Media`] to a macro of this crate: first those that return at once, then the async
/// ones.
#[doc(hidden)]
#[macro_export]
macro_rules! media_methods {
    ($then:path; $($with:tt)*) => {
        $then! {
            $($with)*
            now {
                blocks() -> u64;
                block_bytes() -> u32;
                runs(at: $crate::Extent, put: &mut dyn FnMut(u32, &[u8]))
                    -> Result<(), $crate::MediaError>;
                head() -> Option<$crate::Head>;
                is_immediate() -> bool;
                prefetch(at: $crate::Extent, soon: $crate::Soon) -> ();
                capabilities() -> $crate::Capabilities<'_>;
            }
            later {
                read(at: $crate::Extent) -> Result<$crate::runtime::Time, $crate::MediaError>;
                write(at: $crate::Extent, data: &[u8]) -> Result<(), $crate::MediaError>;
                flush() -> Result<(), $crate::MediaError>;
                read_head(at: $crate::Extent, bytes: u32)
                    -> Result<$crate::runtime::Time, $crate::MediaError>;
                deallocate(at: $crate::Extent) -> Result<(), $crate::MediaError>;
            }
        }
    };
}

macro_rules! layer {
    (
        now { $($now:ident($($name:ident: $type:ty),*) -> $gives:ty;)* }
        later { $($later:ident($($named:ident: $typed:ty),*) -> $given:ty;)* }
    ) => {
        /// A medium on top of another, which it forwards all methods to except those that it defines.
        pub trait Layer: 'static {
            /// The medium below.
            type Beneath: Media;

            /// The medium below.
            fn beneath(&self) -> &Self::Beneath;

            /// [`Media::write_at_once`]. Not as beneath: a layer that changes what a write does must not be
            /// bypassed by it.
            #[inline]
            fn write_at_once(
                &self,
                at: $crate::Extent,
                fill: &mut dyn FnMut(u32, &mut [u8]),
            ) -> Result<bool, $crate::MediaError> {
                let _ = (at, fill);
                Ok(false)
            }

            $(
                #[doc = concat!("[`Media::", stringify!($now), "`], as beneath.")]
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    self.beneath().$now($($name),*)
                }
            )*
            $(
                #[doc = concat!("[`Media::", stringify!($later), "`], as beneath.")]
                #[inline]
                fn $later(&self $(, $named: $typed)*) -> impl Future<Output = $given> {
                    self.beneath().$later($($named),*)
                }
            )*
        }

        impl<L: Layer> Media for L {
            #[inline]
            fn write_at_once(
                &self,
                at: $crate::Extent,
                fill: &mut dyn FnMut(u32, &mut [u8]),
            ) -> Result<bool, $crate::MediaError> {
                Layer::write_at_once(self, at, fill)
            }

            $(
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    Layer::$now(self $(, $name)*)
                }
            )*
            $(
                #[inline]
                fn $later(&self $(, $named: $typed)*) -> impl Future<Output = $given> {
                    Layer::$later(self $(, $named)*)
                }
            )*
        }
    };
}
media_methods!(layer;);

/// Makes an enum a medium that forwards to its variant. Takes the enum's name, an identifier for the inner
/// medium, and a pattern for each variant that binds this identifier.
#[macro_export]
macro_rules! either {
    ($of:ident, $medium:ident: $($pattern:pat),+) => {
        $crate::media_methods!($crate::either_impl; $of ($medium: $($pattern),+));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! either_impl {
    (
        $of:ident $arms:tt
        now { $($now:ident($($name:ident: $type:ty),*) -> $gives:ty;)* }
        later { $($later:ident($($named:ident: $typed:ty),*) -> $given:ty;)* }
    ) => {
        impl $crate::Media for $of {
            #[inline]
            fn write_at_once(
                &self,
                at: $crate::Extent,
                fill: &mut dyn FnMut(u32, &mut [u8]),
            ) -> Result<bool, $crate::MediaError> {
                $crate::either_held!(self $arms write_at_once(at, fill))
            }

            $(
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    $crate::either_held!(self $arms $now($($name),*))
                }
            )*
            $(
                #[inline]
                async fn $later(&self $(, $named: $typed)*) -> $given {
                    $crate::either_held!(self $arms $later($($named),*) await)
                }
            )*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! either_held {
    ($self:ident ($medium:ident: $($pattern:pat),+) $call:ident $with:tt) => {
        match $self { $($pattern => $medium.$call $with,)+ }
    };
    ($self:ident ($medium:ident: $($pattern:pat),+) $call:ident $with:tt await) => {
        match $self { $($pattern => $medium.$call $with.await,)+ }
    };
}
