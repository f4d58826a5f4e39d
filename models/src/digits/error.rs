//! What is said where no digits can be read.
use super::{TEST, TRAIN};
use std::path::PathBuf;
use tensor::files;

/// Why a directory holds no digits to learn: one sentence.
#[derive(Debug, thiserror::Error)]
pub enum DigitsError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] files::Error),
    /// Nowhere to look.
    #[error(
        "{}: there is no such directory; it should hold {} and {}, for training, and {} and {}, for testing, each as it \
         is or as .gz", .0.display(), TRAIN.0, TRAIN.1, TEST.0, TEST.1
    )]
    NoDirectory(PathBuf),
    /// One of the four files is not there.
    #[error("{}: there is neither {name} nor {name}.gz", dir.display())]
    Missing {
        /// Where it was looked for.
        dir: PathBuf,
        /// Its plain name.
        name: &'static str,
    },
    /// What is packed cannot be unpacked.
    #[error("{} has {bytes} bytes that are no sound gzip file: {why}", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// How long it is, packed.
        bytes: u64,
        /// What the unpacker said.
        why: std::io::Error,
    },
    /// Not an IDX file.
    #[error("{} begins with the bytes {:02x} {:02x}; an IDX file begins with 00 00", path.display(), seen[0], seen[1])]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        seen: [u8; 2],
    },
    /// Elements that are no bytes.
    #[error("{} has elements of type 0x{seen:02x}; it must be 0x08, unsigned bytes", path.display())]
    Element {
        /// The file.
        path: PathBuf,
        /// Its third byte.
        seen: u8,
    },
    /// Labels where images should be, or the other way round.
    #[error("the number of dimensions of {} is {seen}; it must be {wanted}", path.display())]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// Its fourth byte.
        seen: u8,
        /// 3 for images, 1 for labels.
        wanted: usize,
    },
    /// Too short to say how much it holds.
    #[error("{} {has}; the sizes of {dimensions} dimensions need {wanted} bytes at least", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// How long it is, in words.
        has: String,
        /// 3 for images, 1 for labels.
        dimensions: usize,
        /// How long the header is.
        wanted: usize,
    },
    /// Nothing to learn from.
    #[error("{} has the size {size}; no dimension may be 0", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its dimensions.
        size: String,
    },
    /// Shorter or longer than its header says.
    #[error("{} {has}; the size {size} in its header wants {wanted}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// How long it is, in words.
        has: String,
        /// Its dimensions.
        size: String,
        /// How long it must be.
        wanted: u128,
    },
    /// An image without a label, or a label without an image.
    #[error(
        "images in {}: {images}, labels in {}: {labels}; each image needs one label", paths[0].display(),
        paths[1].display()
    )]
    Counts {
        /// The file of images, that of labels.
        paths: [PathBuf; 2],
        /// How many images.
        images: usize,
        /// How many labels.
        labels: usize,
    },
    /// What is learnt cannot be tested.
    #[error(
        "{} has images of {}×{} pixels and {} of {}×{}; both must have the same size", paths[0].display(), train[0],
        train[1], paths[1].display(), test[0], test[1]
    )]
    Sizes {
        /// The images to learn from, those to be judged by.
        paths: [PathBuf; 2],
        /// Rows and columns to learn from.
        train: [usize; 2],
        /// Rows and columns to be judged by.
        test: [usize; 2],
    },
}
