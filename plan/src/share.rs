//! Time of a model on a share of a device, and the share that it should get. Letters: `S` cores, or other
//! equal parts of a device; it may be below 1.
//!
//! ```text
//! E(S)   = serial time + Σ over kernels of work / min(S, parallel part)
//! A(S)   = 1/(E·S)                                                       (13), throughput of a core
//! slope  = −1/(E²·S)                                                     (14)
//! knee   = the S with the largest 1/(E²·S)
//! ```
//!
//! The knee is this project's reading of (14): beyond it, a larger share is worth less than it costs. Serial
//! time is a kernel with a parallel part of one core; below one core it takes longer, too.
//!
//! Source: Dhakal et al., "D-STACK: high throughput DNN inference by effective multiplexing and
//! spatio-temporal scheduling of GPUs", §4, arXiv:2304.13541. Chapter: sparse and shared.

/// A kernel that may run on several cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParallelKernel {
    /// Seconds on one core.
    pub work: f64,
    /// Number of cores that it can use.
    pub parallel: f64,
}

/// A model on a share of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedModel {
    /// Seconds outside kernels.
    pub serial: f64,
    /// Its kernels.
    pub kernels: Vec<ParallelKernel>,
}

/// Throughput of a core (13), from the seconds of a forward on this many.
pub fn throughput(seconds: f64, cores: f64) -> f64 {
    1.0 / (seconds * cores)
}

/// Change of the throughput of a core with the seconds of a forward (14).
pub fn slope(seconds: f64, cores: f64) -> f64 {
    -1.0 / (seconds * seconds * cores)
}

/// Returns the share with the steepest slope, from shares and their seconds; of equal ones the smallest.
pub fn knee(shares: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let steeper = |best: Option<(f64, f64)>, (cores, seconds): (f64, f64)| {
        let steepness = -slope(seconds, cores);
        Some(best.filter(|(_, most)| *most >= steepness).unwrap_or((cores, steepness)))
    };
    shares.into_iter().fold(None, steeper).map(|(cores, _)| cores)
}

impl SharedModel {
    /// Returns the seconds of a forward on this many cores.
    pub fn seconds(&self, cores: f64) -> f64 {
        let serial = ParallelKernel { work: self.serial, parallel: 1.0 };
        let seconds = |kernel: &ParallelKernel| kernel.work / cores.min(kernel.parallel);
        seconds(&serial) + self.kernels.iter().map(seconds).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(serial: f64, kernels: &[(f64, f64)]) -> SharedModel {
        let kernel = |&(work, parallel)| ParallelKernel { work, parallel };
        SharedModel { serial, kernels: kernels.iter().map(kernel).collect() }
    }

    /// Kills: a kernel on more cores than it can use, serial time that more cores shorten, or that a part of
    /// a core does not lengthen.
    #[test]
    fn kernels_use_no_more_cores_than_they_can() {
        let of = model(1.0, &[(8.0, 2.0), (12.0, 6.0)]);
        for (cores, seconds) in [(0.5, 42.0), (1.0, 21.0), (2.0, 11.0), (4.0, 8.0), (6.0, 7.0), (9.0, 7.0)] {
            assert_eq!(of.seconds(cores), seconds, "{cores}");
        }
        assert_eq!([throughput(11.0, 2.0), slope(11.0, 2.0)], [1.0 / 22.0, -1.0 / 242.0]);
    }

    /// With serial time s and work w that any number of cores can share, 1/(E²·S) is largest at S = w/s; and
    /// not beyond the parallel part. Kills: the knee of E·S, which is the smallest share; the last of equals.
    #[test]
    fn the_knee_is_where_parallel_and_serial_time_are_equal() {
        let shares =
            |of: &SharedModel| (1..=20).map(|n| (f64::from(n), of.seconds(f64::from(n)))).collect::<Vec<_>>();
        let parts = |of: &SharedModel| {
            let tenths = (1..10).map(|n| f64::from(n) / 10.0);
            tenths.map(|n| (n, of.seconds(n))).chain(shares(of)).collect::<Vec<_>>()
        };
        for (serial, work, parallel, wanted) in
            [(1.0, 6.0, 100.0, 6.0), (1.0, 6.0, 4.0, 4.0), (2.0, 1.0, 8.0, 1.0), (0.0, 5.0, 16.0, 16.0)]
        {
            let of = model(serial, &[(work, parallel)]);
            assert_eq!(knee(shares(&of)), Some(wanted), "{of:?}");
            assert_eq!(knee(parts(&of)), Some(wanted), "{of:?}");
        }
        assert_eq!((knee([(1.0, 4.0), (4.0, 2.0)]), knee([])), (Some(1.0), None));
    }
}
