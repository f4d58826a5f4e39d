//! The binary `equipart`: see [`equipart::cli`].

fn main() -> std::process::ExitCode {
    equipart::commands::main()
}
