import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.Key;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Base64;
import java.util.Collections;

/** Writes every key of a key store (arguments: the store, its password) beside it: <alias>.crt, its chain, and <alias>.key. */
class ExportPem {
    public static void main(String[] arguments) throws Exception {
        File file = new File(arguments[0]);
        char[] password = arguments[1].toCharArray();
        KeyStore store = KeyStore.getInstance(file, password);
        for (String alias : Collections.list(store.aliases())) {
            StringBuilder chain = new StringBuilder();
            for (Certificate certificate : store.getCertificateChain(alias)) {
                chain.append(pem("CERTIFICATE", certificate.getEncoded()));
            }
            Key key = store.getKey(alias, password);
            Files.writeString(Path.of(file.getParent(), alias + ".crt"), chain);
            Files.writeString(Path.of(file.getParent(), alias + ".key"), pem("PRIVATE KEY", key.getEncoded()));
        }
    }

    static String pem(String label, byte[] content) {
        String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
        return "-----BEGIN " + label + "-----\n" + text + "\n-----END " + label + "-----\n";
    }
}
