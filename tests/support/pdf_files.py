"""Writes small PDF files by hand: one line of text a page."""

from pathlib import Path


def write_pdf(path: Path, pages: list[str], *, title: str, author: str) -> None:
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R "
            f">> >> /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    objects.append(f"<< /Title ({title}) /Author ({author}) /CreationDate (D:20240501120000) >>")
    data, places = "%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>"
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    data += f"trailer\n{trailer}\nstartxref\n{data.index('xref')}\n%%EOF\n"
    path.write_bytes(data.encode("latin-1"))
