//! One vector type for three instruction sets, and the run-time choice between them.
//!
//! A kernel is written once, generic over [`Vector`], and [`kernel!`] compiles it three times. Written by hand rather than
//! with a SIMD crate because kernels need unaligned windows into padded planes, and because a function per instruction
//! set keeps every kernel a plain function with slices in and out.
//!
//! In a kernel's body, vectors are a type parameter. The vectors of AVX2 and AVX-512 are private to this module,
//! which hands them out in exchange for a proof of detection ([`detected`]): no safe code can run an instruction that the
//! machine does not have.

mod bytes;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cell::Cell;
use std::sync::OnceLock;

pub(crate) use bytes::{ByteIsa, ByteKernel, ByteSums};
use vector::Portable;
pub(crate) use vector::{Kernel, Vector, lanes_of_rest};

/// An instruction set that kernels were compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Sixteen lanes.
    Avx512,
    /// Eight lanes with fused multiply-add.
    Avx2,
    /// Whatever the compiler makes of plain arrays.
    Portable,
}

impl Path {
    /// Every path that this machine can run, the best first.
    ///
    /// The environment variable `REGARD_MAX_ISA` (`avx2` or `portable`, read once) leaves out what is better than that:
    /// for tools that do not know every instruction, and to compare.
    #[must_use]
    pub fn available() -> &'static [Path] {
        static AVAILABLE: OnceLock<Vec<Path>> = OnceLock::new();
        AVAILABLE.get_or_init(|| isas().iter().map(|isa| isa.path()).collect())
    }
}

/// Proofs that instructions were detected: values of these types exist only where they are there.
mod detected {
    /// AVX2 and FMA.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    /// AVX-512F, AVX2 and FMA.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(Avx2);

    /// AVX-512 with its instructions for products of bytes.
    #[derive(Clone, Copy, Debug)]
    pub struct Vnni(());

    #[cfg(target_arch = "x86_64")]
    impl Avx2 {
        pub fn find() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
        }
    }

    #[cfg(target_arch = "x86_64")]
    impl Avx512 {
        pub fn find() -> Option<Self> {
            Avx2::find().filter(|_| is_x86_feature_detected!("avx512f")).map(Self)
        }

        /// What is part of it.
        pub fn avx2(self) -> Avx2 {
            self.0
        }
    }

    #[cfg(target_arch = "x86_64")]
    impl Vnni {
        pub fn find(_: Avx512) -> Option<Self> {
            (is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni")).then_some(Self(()))
        }
    }
}

/// A path, with the proof that this machine can run it.
#[derive(Clone, Copy, Debug)]
enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512(detected::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(detected::Avx2),
    Portable,
}

impl Isa {
    const fn path(self) -> Path {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => Path::Avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => Path::Avx2,
            Self::Portable => Path::Portable,
        }
    }
}

/// What this machine can run, the best first.
fn isas() -> &'static [Isa] {
    static ISAS: OnceLock<Vec<Isa>> = OnceLock::new();
    ISAS.get_or_init(|| {
        let mut isas = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            isas.extend(detected::Avx512::find().map(Isa::Avx512));
            isas.extend(detected::Avx2::find().map(Isa::Avx2));
        }
        isas.push(Isa::Portable);
        match std::env::var("REGARD_MAX_ISA").as_deref() {
            Ok("avx2") => isas.retain(|isa| isa.path() != Path::Avx512),
            Ok("portable") => isas.retain(|isa| isa.path() == Path::Portable),
            _ => {}
        }
        isas
    })
}

thread_local! {
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// Runs `work` on one thread with every kernel forced onto a path: how tests compare the paths.
///
/// # Panics
/// When this machine cannot run that path.
pub fn with_path<T: Send>(path: Path, work: impl FnOnce() -> T + Send) -> T {
    let isa = isas().iter().find(|isa| isa.path() == path);
    let isa = *isa.unwrap_or_else(|| panic!("this machine cannot run {path:?}"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be started");
    pool.install(|| {
        FORCED.set(Some(isa));
        work()
    })
}

#[inline]
fn isa() -> Isa {
    FORCED.get().unwrap_or_else(|| isas()[0])
}

/// The path that kernels on this thread take.
#[inline]
#[must_use]
pub fn path() -> Path {
    isa().path()
}

/// Runs a kernel compiled for the path of the calling thread.
#[inline(always)]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => x86::run_avx512(proof, kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => x86::run_avx2(proof, kernel),
        Isa::Portable => kernel.run::<Portable>(),
    }
}

/// Defines a function that runs `body::<V>` compiled for the path of the calling thread. Lifetimes have names, since the
/// arguments travel in a struct.
///
/// `body` and everything generic below it must be `#[inline(always)]`: only inlined code is compiled with the
/// instruction set of the function around it.
macro_rules! kernel {
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident<$($life:lifetime),+>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:ident
    ) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, clippy::needless_lifetimes, clippy::elidable_lifetime_names)]
        $vis fn $name<$($life),+>($($arg: $ty),*) $(-> $ret)? {
            struct Call<$($life),+> {
                $($arg: $ty),*
            }
            impl<$($life),+> crate::simd::Kernel for Call<$($life),+> {
                type Output = crate::simd::output!($($ret)?);
                #[inline(always)]
                fn run<V: crate::simd::Vector>(self) -> Self::Output {
                    let Self { $($arg),* } = self;
                    $body::<V>($($arg),*)
                }
            }
            crate::simd::dispatch(Call { $($arg),* })
        }
    };
}
pub(crate) use kernel;

/// The type of what a kernel returns.
macro_rules! output {
    () => {
        ()
    };
    ($ret:ty) => {
        $ret
    };
}
pub(crate) use output;
