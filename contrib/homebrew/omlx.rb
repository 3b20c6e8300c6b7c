# A draft of a formula for a tap of your own. Before it can be published it needs the address and checksum of a release;
# until then: `brew install --HEAD ./contrib/homebrew/omlx.rb` after filling in `head`.
class Omlx < Formula
  include Language::Python::Virtualenv

  desc "Ollama-compatible server for MLX models"
  homepage "https://example.org/omlx"
  # url "https://example.org/omlx-0.1.0.tar.gz"
  # sha256 "..."
  license "Apache-2.0"
  head "https://example.org/omlx.git", branch: "main"

  depends_on arch: :arm64
  depends_on :macos
  depends_on "python@3.12"

  # MLX and the others come as wheels from PyPI: they cannot be built in Homebrew's sandbox, so this is no formula for
  # homebrew-core.
  def install
    virtualenv_create(libexec, "python3.12", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "#{buildpath}[menubar]"
    bin.install_symlink libexec/"bin/omlx"
    bash_completion.install "contrib/completions/omlx.bash" => "omlx"
    zsh_completion.install "contrib/completions/_omlx"
    fish_completion.install "contrib/completions/omlx.fish"
  end

  service do
    run [opt_bin/"omlx", "serve"]
    keep_alive successful_exit: false
    process_type :interactive
    log_path var/"log/omlx.log"
    error_log_path var/"log/omlx.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/omlx --version")
    assert_match "not installed", shell_output("#{bin}/omlx service status", 4)
  end
end
