//! The list of carriers. A new one is a file that implements [`Carrier`](super::connection::Carrier) and
//! [`Connection`](super::connection::Connection), and a line here.
use super::connection::CarrierInfo;
use super::tcp;

/// All carriers, each preferred to those after it.
pub(super) const CARRIERS: &[CarrierInfo] = &[
    #[cfg(feature = "mpi")]
    super::mpi::INFO,
    tcp::INFO,
];

/// Returns the carrier of ranks whose launcher sets this variable to their rank.
pub(super) fn of(variable: &str) -> &'static CarrierInfo {
    let of = CARRIERS.iter().find(|carrier| (carrier.carries)(variable));
    of.expect("TCP carries what the ranks of any launcher send")
}
