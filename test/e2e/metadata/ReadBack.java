// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;

/**
 * Reads metadata files with Iceberg for Java, writes each again with it, and compares that with an
 * expected outcome that Java has written. Its argument is a JSON file: a list of objects with name,
 * file (the metadata) and want (the outcome; absent when the file only has to be readable).
 */
public class ReadBack {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    for (JsonNode job : JSON.readTree(Files.readString(Path.of(args[0])))) {
      String name = job.get("name").asText();
      try {
        String text = Files.readString(Path.of(job.get("file").asText()));
        TableMetadata read = TableMetadataParser.fromJson(text);
        List<String> differences = new ArrayList<>();
        if (job.hasNonNull("want")) {
          compare("", timeless(job.get("want")), timeless(JSON.readTree(TableMetadataParser.toJson(read))), differences);
        }
        System.out.println(differences.isEmpty() ? "ok " + name : "FAIL " + name + ": " + String.join("; ", differences));
      } catch (Exception e) {
        System.out.println("FAIL " + name + ": Java cannot read it: " + e);
      }
    }
  }

  /** The time of a commit is that of its run; a rollback repeats it in the snapshot log. */
  private static JsonNode timeless(JsonNode document) {
    ObjectNode copy = document.deepCopy();
    long updated = copy.get("last-updated-ms").asLong();
    copy.remove("last-updated-ms");
    if (copy.get("snapshot-log") instanceof ArrayNode log) {
      for (JsonNode entry : log) {
        if (entry.get("timestamp-ms").asLong() == updated) {
          ((ObjectNode) entry).put("timestamp-ms", 0);
        }
      }
    }
    return copy;
  }

  private static void compare(String path, JsonNode want, JsonNode got, List<String> differences) {
    if (want != null && got != null && want.isObject() && got.isObject()) {
      Set<String> names = new TreeSet<>();
      for (JsonNode node : List.of(want, got)) {
        for (Iterator<String> i = node.fieldNames(); i.hasNext(); ) {
          names.add(i.next());
        }
      }
      for (String name : names) {
        compare(path + "." + name, want.get(name), got.get(name), differences);
      }
    } else if (want != null && got != null && want.isArray() && got.isArray() && want.size() == got.size()) {
      for (int i = 0; i < want.size(); i++) {
        compare(path + "[" + i + "]", want.get(i), got.get(i), differences);
      }
    } else if (want == null ? got != null : !want.equals(got)) {
      differences.add(path + ": want " + want + ", got " + got);
    }
  }
}
