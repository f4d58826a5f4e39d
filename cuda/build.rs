//! Compresses the committed kernels: PTX is text and shrinks to a fifth, and programs embed all of it.
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{Error, Result, Write};
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=ptx");
    let to = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| Error::other("cargo names a folder"))?);
    for folder in ["ptx", "ptx/hand"] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "ptx") {
                let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
                packed.write_all(&fs::read(&path)?)?;
                let name = path.with_extension("z");
                fs::write(to.join(name.file_name().unwrap_or_default()), packed.finish()?)?;
            }
        }
    }
    Ok(())
}
