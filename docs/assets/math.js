// Formulas are written in TeX; KaTeX, which lies beside this file, sets them. Nothing is fetched from elsewhere.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const displayMode = text.startsWith("\\[");
    katex.render(text.slice(2, -2), element, { displayMode, throwOnError: false });
  }
});
